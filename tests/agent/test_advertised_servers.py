"""What an agent learns from its servers of their number."""

from __future__ import annotations

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.connection_group import MOST_SERVERS, advertised_servers
from yurttunnel.wire.hello import Hello, Limits


class AdvertisedTests(ClientTestCase):
    """What servers say of their number."""

    def advertised(self, text):
        """Connect to a server that says so, give what the client makes of it."""
        self.patch(self.listener, "_replicas", lambda: text)
        self.client.start()
        self.network.settle()
        return self.group.advertised

    def test_number(self):
        """It is known from the newest HELLO, also from one that resumes."""
        self.assertEqual(3, self.advertised(3))
        self.patch(self.listener, "_replicas", lambda: 2)
        self.network.cut()
        self.attempt()
        self.assertEqual(2, self.group.advertised)

    def test_none(self):
        """A server that does not say it leaves it unknown."""
        self.assertIsNone(self.advertised(None))

    def test_no_longer(self):
        """A server that does not know it leaves what was known."""
        self.assertEqual(3, self.advertised(3))
        self.patch(self.listener, "_replicas", lambda: None)
        self.network.cut()
        self.start_server()
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(3, self.group.advertised)

    def test_nonsense(self):
        """So does one that talks nonsense, and no number makes an agent connect without end."""
        for text in ("many", "-1", "\u0663", "1" * 5000):
            self.assertIsNone(advertised_servers(self.hello(text)), text)
        self.assertEqual(1, advertised_servers(self.hello("0")))
        self.assertEqual(MOST_SERVERS, advertised_servers(self.hello("999999999")))

    def hello(self, text):
        """Make a server's HELLO."""
        return Hello(Limits(), bytes(16), bytes(16), properties={"servers": text})
