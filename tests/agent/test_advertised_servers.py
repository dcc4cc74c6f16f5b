"""The number of servers that an agent learns from them."""

from __future__ import annotations

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.connection_group import MAX_SERVERS, advertised_servers
from yurttunnel.wire.hello import Hello, Limits


class AdvertisedTests(ClientTestCase):
    """The number of servers in HELLO."""

    def advertised(self, text):
        """Connect to a server that sends ``text``; return the client's interpretation."""
        self.patch(self.listener, "_replicas", lambda: text)
        self.client.start()
        self.network.settle()
        return self.group.advertised

    def test_number(self):
        """The latest HELLO counts, including one that resumes a session."""
        self.assertEqual(3, self.advertised(3))
        self.patch(self.listener, "_replicas", lambda: 2)
        self.network.cut()
        self.attempt()
        self.assertEqual(2, self.group.advertised)

    def test_none(self):
        """If no server sends a number, it remains unknown."""
        self.assertIsNone(self.advertised(None))

    def test_no_longer(self):
        """A server that does not know the number leaves the known one unchanged."""
        self.assertEqual(3, self.advertised(3))
        self.patch(self.listener, "_replicas", lambda: None)
        self.network.cut()
        self.start_server()
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(3, self.group.advertised)

    def test_nonsense(self):
        """So does a malformed number, and no number causes unlimited connections."""
        for text in ("many", "-1", "\u0663", "1" * 5000):
            self.assertIsNone(advertised_servers(self.hello(text)), text)
        self.assertEqual(1, advertised_servers(self.hello("0")))
        self.assertEqual(MAX_SERVERS, advertised_servers(self.hello("999999999")))

    def hello(self, text):
        """Return a server's HELLO."""
        return Hello(Limits(), bytes(16), bytes(16), properties={"servers": text})
