"""Which API servers there are, and which of them is next."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.upstream.servers import BadServer, Balancer, parse_servers


class ParsingTests(SynchronousTestCase):
    """Servers as they are written on a command line."""

    def test_url(self):
        """A URL has a host and a port."""
        (server,) = parse_servers(["https://api.example:6443"])
        self.assertEqual(("api.example", 6443), (server.host, server.port))
        self.assertEqual(b"api.example:6443", server.authority)
        self.assertEqual("https://api.example:6443", str(server))
        self.assertFalse(server.healthy)

    def test_short_forms(self):
        """Scheme, port and spelling may differ."""
        for text in ("api.example", "https://api.example/", " HTTPS://API.example.:443"):
            (server,) = parse_servers([text])
            self.assertEqual("https://api.example:443", str(server))

    def test_address(self):
        """An IPv6 address is in brackets."""
        (server,) = parse_servers(["https://[fd00::1]:6443"])
        self.assertEqual("fd00::1", server.host)
        self.assertEqual(b"[fd00::1]:6443", server.authority)

    def test_refused(self):
        """What is no server says what to write; without TLS nothing is asked."""
        for texts, word in (
            (["http://api:6443"], "not https"),
            (["https://api:99999"], "HOST:PORT"),
            (["https://a b"], "HOST:PORT"),
            (["https://api:6443/prefix"], "HOST:PORT"),
            ([], "no API server"),
            (["api:6443", "https://API:6443"], "twice"),
        ):
            self.assertIn(word, str(self.assertRaises(BadServer, parse_servers, texts)))


class BalancerTests(SynchronousTestCase):
    """The choice of a server for one request."""

    def setUp(self):
        """Have three, of which the first is not healthy."""
        self.first, self.second, self.third = self.servers = parse_servers("abc")
        self.second.healthy = self.third.healthy = True

    def test_round_robin(self):
        """Those that are healthy take turns."""
        balancer = Balancer(self.servers, rotates=True)
        picked = [str(balancer.pick().host) for _ in range(5)]
        self.assertEqual(list("bcbcb"), picked)

    def test_priority(self):
        """The first that is healthy is taken."""
        balancer = Balancer(self.servers, rotates=False)
        self.assertIs(self.second, balancer.pick())
        self.assertIs(self.second, balancer.pick())
        self.first.healthy = True
        self.assertIs(self.first, balancer.pick())

    def test_those_that_were_tried(self):
        """A server that was tried is not taken again, and then there is none."""
        for rotates in (False, True):
            balancer = Balancer(self.servers, rotates)
            first = balancer.pick()
            second = balancer.pick({first})
            self.assertEqual({self.second, self.third}, {first, second})
            self.assertIsNone(balancer.pick({first, second}))

    def test_none_is_healthy(self):
        """There is nothing to choose from."""
        self.second.healthy = self.third.healthy = False
        self.assertIsNone(Balancer(self.servers, rotates=True).pick())
