"""API servers, and their selection."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.upstream.servers import Balancer, Server, servers_at


class ServerTests(SynchronousTestCase):
    """Servers from URLs."""

    def test_url(self):
        """A URL has a host and a port; an IPv6 address is in brackets."""
        named, addressed = servers_at(["https://api.example:6443", "https://[fd00::1]:443"])
        self.assertEqual(("api.example", 6443), (named.host, named.port))
        self.assertEqual(b"api.example:6443", named.authority)
        self.assertEqual("https://api.example:6443", str(named))
        self.assertFalse(named.healthy)
        self.assertEqual("fd00::1", addressed.host)
        self.assertEqual(b"[fd00::1]:443", addressed.authority)


class BalancerTests(SynchronousTestCase):
    """The selection of a server for one request."""

    def setUp(self):
        """Create three servers, of which the first is unhealthy."""
        self.first, self.second, self.third = self.servers = [Server(name, 443) for name in "abc"]
        self.second.healthy = self.third.healthy = True

    def test_round_robin(self):
        """Healthy servers are used in turn."""
        balancer = Balancer(self.servers, rotates=True)
        picked = [str(balancer.pick().host) for _ in range(5)]
        self.assertEqual(list("bcbcb"), picked)

    def test_priority(self):
        """The first healthy server is used."""
        balancer = Balancer(self.servers, rotates=False)
        self.assertIs(self.second, balancer.pick())
        self.assertIs(self.second, balancer.pick())
        self.first.healthy = True
        self.assertIs(self.first, balancer.pick())

    def test_those_that_were_tried(self):
        """A server that was tried is not selected again; finally there is none."""
        for rotates in (False, True):
            balancer = Balancer(self.servers, rotates)
            first = balancer.pick()
            second = balancer.pick({first})
            self.assertEqual({self.second, self.third}, {first, second})
            self.assertIsNone(balancer.pick({first, second}))

    def test_none_is_healthy(self):
        """Without a healthy server there is none."""
        self.second.healthy = self.third.healthy = False
        self.assertIsNone(Balancer(self.servers, rotates=True).pick())
