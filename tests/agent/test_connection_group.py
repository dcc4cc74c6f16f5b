"""The delays of the clients of one agent."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.connection_group import MAX_PROBE_DELAY, URGENT_DELAY, ConnectionGroup


class NextDelayTests(SynchronousTestCase):
    """The longest delay, after many attempts for a missing server."""

    def setUp(self):
        """Make each random delay the longest."""
        self.patch(random, "uniform", lambda low, high: high)
        self.group = ConnectionGroup(needs_sessions=True)

    def test_probes(self):
        """A client that reaches only connected servers finally looks rarely."""
        self.assertEqual(
            MAX_PROBE_DELAY, self.group.next_delay(30, rejections=30, standing_by=True)
        )

    def test_failure_after_probes(self):
        """A failed attempt is retried soon, whatever earlier attempts reached."""
        self.assertEqual(URGENT_DELAY, self.group.next_delay(30, rejections=30))

    def test_probe_among_failures(self):
        """So is the next one if most have failed."""
        self.assertEqual(URGENT_DELAY, self.group.next_delay(60, rejections=30, standing_by=True))
