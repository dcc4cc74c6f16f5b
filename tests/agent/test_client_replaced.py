"""Another agent of the same node takes over a client's session."""

from __future__ import annotations

import random

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.client import REPLACED_WARNING_INTERVAL
from yurttunnel.agent.connection_group import FIRST_DELAY, MAX_REPLACED_DELAY, REPLACED_DELAY
from yurttunnel.wire.codes import Code


class OtherAgentTests(ClientTestCase):
    """Another agent of the same node takes over the session."""

    def replace(self):
        """Replace the session."""
        self.registry.find("edge-1").tunnel.close(Code.REPLACED, "another")
        self.network.settle()

    def test_waits_long(self):
        """The client waits long before it takes the session back."""
        self.connect()
        self.replace()
        self.assertEqual([], self.client.sessions())
        self.assertTrue(REPLACED_DELAY / 2 <= self.delay() <= REPLACED_DELAY, self.delay())
        self.assertIn("another agent has connected as this node", self.client.problem)
        self.attempt()
        self.assertTrue(self.client.connected)

    def test_longer_each_time(self):
        """It waits longer each time, up to minutes, while the sessions are short."""
        self.patch(random, "uniform", lambda low, high: high)
        self.connect()
        delays = []
        for _ in range(7):
            self.network.pass_time(60, 5)
            self.replace()
            delays.append(self.delay())
            self.attempt()
        expected = [min(REPLACED_DELAY * 2**n, MAX_REPLACED_DELAY) for n in range(7)]
        for bound, delay in zip(expected, delays, strict=True):
            self.assertAlmostEqual(bound, delay, places=3)

    def test_after_a_session_that_lasted(self):
        """A session that has lasted resets the delays."""
        self.patch(random, "uniform", lambda low, high: high)
        self.connect()
        for _ in range(4):
            self.replace()
            self.attempt()
        self.network.pass_time(MAX_REPLACED_DELAY, 5)
        self.replace()
        self.assertAlmostEqual(REPLACED_DELAY, self.delay(), places=3)

    def test_one_warning(self):
        """Repeated replacements are logged rarely."""
        self.connect()
        for _ in range(10):
            self.network.pass_time(1)
            self.replace()
            self.client._retry_call.reset(0)
            self.attempt()
        [warning] = self.warnings
        self.assertIn("another agent has connected as node edge-1", warning)
        self.network.pass_time(REPLACED_WARNING_INTERVAL, 5)
        self.replace()
        self.assertIn("9 more", self.warnings[1])

    def test_is_not_woken(self):
        """Neither missing servers nor the end of another session shorten the delay."""
        self.connect()
        self.replace()
        delay = self.delay()
        self.group.needs_sessions = True
        self.client.retry_soon()
        self.client.sibling_lost_session()
        self.assertEqual(delay, self.delay())

    def test_failure_after_it(self):
        """If no server responds after the delay, the usual retries follow."""
        self.connect()
        self.replace()
        self.network.refuse()
        self.attempt()
        self.assertLessEqual(self.delay(), 2 * FIRST_DELAY)
