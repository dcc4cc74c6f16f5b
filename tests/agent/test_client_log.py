"""The log of a client's failures."""

from __future__ import annotations

from twisted.internet.error import TimeoutError

from tests.agent.clients import ClientTestCase


class LogTests(ClientTestCase):
    """The log for the agent's operator."""

    def test_once_a_message(self):
        """A repeated failure is logged once, a different one again; all are counted."""
        self.network.refuse()
        self.client.start()
        for _ in range(3):
            self.attempt()
        self.network.problem = TimeoutError()
        for _ in range(3):
            self.attempt()
        first, second = self.warnings
        self.assertTrue(first.startswith("server.test:10262: cannot connect: "), first)
        self.assertIn("refused", first)
        self.assertNotEqual(first, second)
        self.assertEqual(7, self.client.failed_attempts)

    def test_again_after_success(self):
        """After a connection the same failure is logged again."""
        self.network.refuse()
        self.client.start()
        self.network.problem = None
        self.attempt()
        self.network.cut()
        self.network.refuse()
        self.attempt()
        self.assertEqual(2, len(self.warnings))
