"""Limits of concurrent requests, for all clients and for each pod."""

from __future__ import annotations

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost

from tests.hub.forwarding.world import JSON, KUBELET, LEASES, OK, PODS, World
from yurttunnel.hub.upstream.connections import POOL


class LimitTests(World):
    """Too many concurrent requests."""

    limits = (2, 3)

    def test_watches(self):
        """Watches over their limit are rejected with Retry-After; short requests continue."""
        clients = []
        for _ in range(5):
            self.client = self.server.connect()
            clients.append(self.client)
            self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        for self.client in clients[3:]:
            self.assertEqual(429, self.client_responses()[0][0])
            self.assertIn(b"Retry-After: 1\r\n", self.client.sent)
        self.client = self.server.connect()
        self.send_request("/version")
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())

    def test_changed_limits(self):
        """Current requests continue; later ones are subject to the new limits."""
        self.limited.set_limits(1, 1)
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        first, self.client = self.client, self.server.connect()
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.assertEqual(429, self.client_responses()[0][0])
        self.limited.set_limits(0, 2)
        self.client = self.server.connect()
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.assertEqual((b"", b""), (first.sent, self.client.sent))

    def test_shares_are_released(self):
        """The end of a request frees its place for the next one."""
        for _ in range(5):
            self.send_request("/version")
            self.respond(OK)
        self.assertEqual([(200, b"ok")] * 5, self.client_responses(*["GET"] * 5))

    def test_lease(self):
        """The kubelet's Lease is always served."""
        for _ in range(2):
            self.client = self.server.connect()
            self.send_request("/version")
        self.client = self.server.connect()
        self.send_request(f"{LEASES}/edge-1", KUBELET)
        self.assertEqual(404, self.client_responses()[0][0])


class PodWorld(World):
    """Pods with addresses of their own."""

    def send_request_as(self, number, target, *fields, **request):
        """Send a request from one of the pods, on a connection of its own, which is returned."""
        self.client = connection = self.server.connect()
        connection.getPeer = lambda: IPv4Address("TCP", f"10.244.1.{number}", 40000)
        self.send_request(target, KUBELET, b"Authorization: Bearer t", *fields, **request)
        return connection


class PodLimitTests(PodWorld):
    """Pods with too many concurrent requests."""

    limits = (2, 3)

    def test_the_node(self):
        """They do not affect the node's own requests and watches, and have limits of their own."""
        for target in ("/version", f"{PODS}?watch=1"):
            self.local = False
            clients = []
            for _ in range(4):
                self.client = self.server.connect()
                clients.append(self.client)
                self.send_request(target, KUBELET, b"Authorization: Bearer t")
            self.assertIn(b" 429 ", clients[-1].sent[:20])
            self.local = True
            self.client = self.server.connect()
            self.send_request(target, KUBELET)
            self.assertEqual(b"", self.client.sent)

    def test_other_pods(self):
        """A pod may use as much as it leaves free; ended requests release their share."""
        self.local = False
        self.limited.set_limits(4, 4)
        for target in ("/version", f"{PODS}?watch=1"):
            first, second, third = [self.send_request_as(1, target) for _ in range(3)]
            others = [self.send_request_as(number, target) for number in (2, 3)]
            self.assertEqual([b""] * 4, [each.sent for each in (first, second, *others)])
            self.assertIn(b" 429 ", third.sent[:20])
            for ended in (first, others[0]):
                ended.break_off(ConnectionLost())
            self.assertEqual(b"", self.send_request_as(1, target).sent)


class PodConnectionTests(PodWorld):
    """Pods that occupy connections to the API for a long time."""

    limits = (1000, 1000)
    local = False

    def reached(self, number, target, *fields, body=b""):
        """Send a request from a pod; return whether it reaches the API."""
        before = len(self.connections.played)
        self.send_request_as(number, target, *fields, method=b"POST" if fields else b"GET")
        self.client.receive(body)
        self.settle()
        return len(self.connections.played) > before

    def test_bodies_that_do_not_come(self):
        """Incomplete uploads of one pod do not block uploads of others, however many they are."""
        endless, body = b"Content-Length: 100000000", b"{" * 80_000
        begun = sum(self.reached(1, PODS, endless, body=body) for _ in range(100))
        self.assertEqual(POOL.max_uploads_per_key // 2, begun)
        self.assertTrue(self.reached(2, PODS, endless, body=body))

    def test_answers_that_do_not_come(self):
        """Nor do requests without a response."""
        begun = sum(self.reached(1, "/version") for _ in range(100))
        self.assertEqual(POOL.max_per_key // 2, begun)
        self.assertTrue(self.reached(2, "/version"))


class UnboundedTests(LimitTests):
    """No limits."""

    limits = (0, 0)

    def test_watches(self):
        """All are accepted."""
        for _ in range(5):
            self.client = self.server.connect()
            self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
            self.assertEqual(b"", self.client.sent)
