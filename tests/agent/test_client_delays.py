"""The delays between a client's attempts."""

from __future__ import annotations

import random

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.connection_group import (
    FIRST_DELAY,
    MAX_DELAY,
    URGENT_ATTEMPTS,
    URGENT_DELAY,
    ConnectionGroup,
)
from yurttunnel.tunnel.connection import HELLO_TIMEOUT


class DelayTests(ClientTestCase):
    """The delay before the client's next attempt."""

    def test_bounds(self):
        """Each delay is between zero and a bound that doubles up to MAX_DELAY."""
        self.network.refuse()
        self.client.start()
        bound = FIRST_DELAY
        for _ in range(14):
            self.assertLessEqual(0, self.delay())
            self.assertLessEqual(self.delay(), bound + 1e-3)
            bound = min(2 * bound, MAX_DELAY)
            self.attempt()

    def test_full_jitter(self):
        """The delays of many clients are evenly distributed over the whole range."""
        self.network.refuse()
        self.client.start()
        delays = []
        for _ in range(400):
            self.client.retries = 30
            self.attempt()
            delays.append(self.delay())
        quarters = [sum(15 * n <= d < 15 * (n + 1) for d in delays) for n in range(4)]
        for quarter in quarters:
            self.assertTrue(60 < quarter < 140, quarters)
        self.assertLessEqual(max(delays), MAX_DELAY + 1e-3)

    def test_many_failures(self):
        """A delay is computed however many attempts have failed."""
        self.network.refuse()
        self.client.start()
        self.client.retries = 1_000_000
        self.attempt()
        self.assertLessEqual(self.delay(), MAX_DELAY + 1e-3)

    def test_reset_by_hello(self):
        """The server's HELLO resets the delays."""
        self.network.refuse()
        self.client.start()
        for _ in range(6):
            self.attempt()
        self.network.problem = None
        self.attempt()
        self.assertTrue(self.client.connected)
        self.network.cut()
        self.assertLessEqual(self.delay(), FIRST_DELAY + 1e-3)

    def test_not_reset_by_connection(self):
        """A connection without a HELLO is a failed attempt like any other."""
        self.client.start()
        for number in range(1, 6):
            self.network.links[-1].lost = True
            self.clock.advance(HELLO_TIMEOUT)
            self.network.links[-1].cut()
            self.assertEqual(number, self.client.failed_attempts)
            self.assertEqual(number, self.client.retries)
            self.clock.advance(self.delay() + 1e-6)

    def test_refused_by_tls(self):
        """So is one whose certificate the server rejects, which TLS 1.3 first lets through."""
        self.client = self.make_client(self.issuer.expired_node())
        self.client.start()
        self.network.settle()
        for number in range(1, 6):
            self.assertEqual((number, number), (self.client.failed_attempts, self.client.retries))
            self.attempt()
        self.assertIn("certificate has expired", self.client.last_error)

    def test_refused_by_the_server(self):
        """So is one that the server answers with CLOSE; the reason is reported."""
        self.revoked = True
        self.client.start()
        self.network.settle()
        for number in range(1, 6):
            self.assertEqual((number, number), (self.client.failed_attempts, self.client.retries))
            self.attempt()
        self.assertIn("node edge-1 is revoked", self.client.last_error)

    def test_while_wanting(self):
        """While a server is missing the bound stays at URGENT_DELAY, until it counts as gone."""
        self.group.needs_sessions = True
        self.network.refuse()
        self.patch(random, "uniform", lambda low, high: high)
        self.client.start()
        for number in range(URGENT_ATTEMPTS + 3):
            longest = URGENT_DELAY if number < URGENT_ATTEMPTS else MAX_DELAY
            self.assertAlmostEqual(min(FIRST_DELAY * 2**number, longest), self.delay(), places=3)
            self.attempt()

    def test_to_resume(self):
        """The same holds while a session is to be resumed, whose window would expire."""
        self.connect()
        self.stream()
        self.network.cut()
        self.network.refuse()
        self.patch(random, "uniform", lambda low, high: high)
        for _ in range(8):
            self.attempt()
        self.assertLessEqual(self.delay(), URGENT_DELAY + 1e-3)
        self.assertEqual(1, len(self.client.sessions()))

    def test_herd(self):
        """Agents that wait for one server reconnect evenly spread over URGENT_DELAY."""
        group = ConnectionGroup(needs_sessions=True)
        delays = [group.next_delay(20) for _ in range(2000)]
        for second in range(5):
            number = sum(second <= delay < second + 1 for delay in delays)
            self.assertTrue(340 < number < 460, number)
        self.assertLessEqual(max(delays), URGENT_DELAY)
