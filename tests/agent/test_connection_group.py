"""How long clients of one agent wait before they connect again."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.connection_group import LONGEST_LOOK, URGENT_DELAY, ConnectionGroup


class NextDelayTests(SynchronousTestCase):
    """The longest delay, after many attempts for a server that is yet to be found."""

    def setUp(self):
        """Have the longest delay chosen."""
        self.patch(random, "uniform", lambda low, high: high)
        self.group = ConnectionGroup(wanting=True)

    def test_looks(self):
        """Who meets only servers that are connected already looks seldom in the end."""
        self.assertEqual(LONGEST_LOOK, self.group.next_delay(30, looks=30, standing_by=True))

    def test_failure_after_looks(self):
        """An attempt that has failed is made again soon, whatever those before have led to."""
        self.assertEqual(URGENT_DELAY, self.group.next_delay(30, looks=30))

    def test_look_among_failures(self):
        """So is the next one where most have failed."""
        self.assertEqual(URGENT_DELAY, self.group.next_delay(60, looks=30, standing_by=True))
