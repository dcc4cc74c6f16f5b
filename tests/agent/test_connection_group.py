"""The delays of the clients of one agent."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.connection_group import LONGEST_LOOK, URGENT_DELAY, ConnectionGroup


class NextDelayTests(SynchronousTestCase):
    """The longest delay, after many attempts for a missing server."""

    def setUp(self):
        """Make each random delay the longest."""
        self.patch(random, "uniform", lambda low, high: high)
        self.group = ConnectionGroup(wanting=True)

    def test_looks(self):
        """A client that reaches only connected servers finally looks rarely."""
        self.assertEqual(LONGEST_LOOK, self.group.next_delay(30, looks=30, standing_by=True))

    def test_failure_after_looks(self):
        """A failed attempt is retried soon, whatever earlier attempts reached."""
        self.assertEqual(URGENT_DELAY, self.group.next_delay(30, looks=30))

    def test_look_among_failures(self):
        """So is the next one if most have failed."""
        self.assertEqual(URGENT_DELAY, self.group.next_delay(60, looks=30, standing_by=True))
