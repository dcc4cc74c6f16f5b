"""Requests through the hub while offline, and before its first health checks."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost

from tests.hub.cache.memory import MemoryCache
from tests.hub.forwarding.world import (
    CHUNKED,
    JSON,
    KUBELET,
    OK,
    PODS,
    World,
    chunk,
    pod,
    pod_list,
)
from tests.hub.offline.world import TYPES, item
from yurttunnel.hub.cache.interfaces import CacheFailed, Scope
from yurttunnel.hub.media.interfaces import ListMeta
from yurttunnel.hub.offline.service import Offline, OfflineSettings


class SilentServers(World):
    """The API servers do not respond."""

    def begin(self):
        """Start without them."""
        self.silent.update(self.api_servers)
        super().begin()
        self.clock.advance(2.1)


class OfflineTests(SilentServers):
    """The cloud is not reachable."""

    def test_answered_here(self):
        """Requests are served locally, without connection attempts."""
        self.send_request(PODS, KUBELET)
        self.assertEqual([(200, b"from the cache")], self.client_responses())
        self.assertEqual([], self.connections.keys)

    def test_return(self):
        """When a server is healthy again, requests are forwarded."""
        self.silent.clear()
        self.pass_time(13)
        self.client = self.server.connect()
        self.send_request("/version")
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())


class StartTests(World):
    """The first health checks are not complete."""

    def begin(self):
        """Start with servers that do not respond."""
        self.silent.update(self.api_servers)
        super().begin()

    def test_nothing_is_known(self):
        """A request waits for 50 ms, and is then served from the cache if it can be."""
        self.send_request(PODS, KUBELET)
        self.pass_time(0.04, step=0.01)
        self.assertEqual([], self.offline.calls)
        self.pass_time(0.02, step=0.01)
        self.assertEqual([(200, b"from the cache")], self.client_responses())

    def test_nothing_is_cached(self):
        """Otherwise it waits for the first health check, and never gets a 404 before."""
        self.offline.is_cached = succeed(False)
        self.send_request(PODS, KUBELET)
        self.pass_time(1.0)
        self.assertEqual([], self.offline.calls)
        self.assertEqual(b"", bytes(self.client.sent))
        self.pass_time(1.5)
        self.assertEqual([(200, b"from the cache")], self.client_responses())

    def test_known_while_it_is_looked_for(self):
        """The first health check may complete before the cache has responded."""
        self.offline.is_cached = is_cached = Deferred()
        self.send_request(PODS, KUBELET)
        self.pass_time(2.5)
        self.assertEqual(b"", bytes(self.client.sent))
        is_cached.callback(False)
        self.assertEqual([(200, b"from the cache")], self.client_responses())

    def test_watches_wait(self):
        """A watch is not served offline before the first health check."""
        self.send_request(f"{PODS}?watch=1", KUBELET)
        self.pass_time(1.0)
        self.assertEqual([], self.offline.calls)
        self.pass_time(1.5)
        self.assertEqual(1, len(self.offline.calls))

    def test_order(self):
        """Requests are handled in order of arrival, whether or not they have waited long."""
        for name, seconds in (("a", 1.95), ("b", 0.1)):
            self.client = self.server.connect()
            self.send_request(f"{PODS}/{name}", KUBELET, method=b"DELETE")
            self.assertEqual([], self.offline.calls)
            self.pass_time(seconds, step=0.05)
        self.assertEqual(["a", "b"], [call.request.name for call in self.offline.calls])

    def test_defects(self):
        """A request that fails with a defect gets a 500, and the others are handled."""
        self.offline.is_cached = succeed(False)
        respond, defects = self.offline.respond, [ZeroDivisionError("defect")]

        def fail_once(call):
            if defects:
                raise defects.pop()
            respond(call)

        self.patch(self.offline, "respond", fail_once)
        clients = [self.client, self.server.connect()]
        for self.client in clients:
            self.send_request(PODS, KUBELET)
        self.pass_time(2.5)
        found = []
        for self.client in clients:
            found += self.client_responses()
        self.assertEqual([500, 200], [status for status, _ in found])
        self.assertIn(b"the hub has a defect", found[0][1])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_client_leaves(self):
        """A request whose client disconnects is forgotten."""
        self.send_request(PODS, KUBELET)
        self.client.break_off(ConnectionLost())
        self.pass_time(0.5)
        self.assertEqual([], self.offline.calls)


class SlowStartTests(World):
    """The first health checks take long (``--heartbeat-timeout-seconds``)."""

    check_seconds = 8

    def begin(self):
        """Start with servers that do not respond."""
        self.silent.update(self.api_servers)
        super().begin()

    def test_nothing_is_cached(self):
        """A request for data that is not cached gets no 404 before they are complete."""
        self.offline.is_cached = succeed(False)
        self.send_request(PODS, KUBELET)
        self.pass_time(7.5)
        self.assertEqual([], self.offline.calls)
        self.assertEqual(b"", bytes(self.client.sent))
        self.pass_time(1)
        self.assertEqual([(200, b"from the cache")], self.client_responses())


class QuickStartTests(World):
    """The first health check is fast."""

    def begin(self):
        """Do not start yet."""

    def test_known_in_time(self):
        """Earlier requests are forwarded to the API."""
        self.send_request("/version")
        self.health.startService()
        self.settle()
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())


class SlowDisk(MemoryCache):
    """Reads of lists complete under the control of the test; ``reads`` are the pending ones."""

    def __init__(self, clock):
        super().__init__(clock)
        self.reads = []

    def list(self, scope):
        """See ``ICache``."""
        return super().list(scope).addCallback(self._slowed)

    def _slowed(self, listed):
        if listed is not None:
            read = listed.read
            listed.read = lambda: self._later().addCallback(lambda _: read())
        return listed

    def _later(self):
        self.reads.append(Deferred())
        return self.reads[-1]


class CachedListWorld(World):
    """A list is cached, and the hub's real offline side serves it."""

    servers = ("a",)
    names = ("kept",)

    def make_cache(self):
        """Create a cache with a list."""
        cache = self.empty_cache()
        listing = cache.begin_list(Scope(self.collection()), "")
        listing.add([item(name) for name in self.names])
        listing.complete(ListMeta(TYPES["pods.v1.core"], "5"))
        return cache

    def empty_cache(self):
        """Return a cache in memory."""
        return MemoryCache(self.clock)

    def make_offline(self):
        """Create the hub's offline side."""
        return Offline(
            self.clock,
            self.cache,
            self.policy,
            self.filters,
            self.health,
            lambda event: succeed(201),
            OfflineSettings("edge-1"),
        )


class SlowDiskWorld(CachedListWorld):
    """A list is cached on a slow disk."""

    def empty_cache(self):
        """Return a cache with a slow disk."""
        return SlowDisk(self.clock)

    def disk_fails(self):
        """Make the single pending read fail."""
        self.cache.reads.pop().errback(CacheFailed("the disk is broken"))

    def disk_reads(self):
        """Complete all pending reads."""
        while self.cache.reads:
            self.cache.reads.pop(0).callback(None)
        self.settle()

    def assert_listed(self, name):
        """Assert that the client got one list with one object."""
        ((status, body),) = self.client_responses()
        self.assertEqual(200, status, body)
        self.assertEqual([name], [one["metadata"]["name"] for one in json.loads(body)["items"]])


class PagesTests(SilentServers, CachedListWorld):
    """A list in pages that begins while offline."""

    names = ("a", "b")

    def test_return(self):
        """Its client has to start again when online: API servers do not know the token."""
        self.send_request(f"{PODS}?limit=1", KUBELET, JSON)
        ((_, first),) = self.client_responses()
        token = json.loads(first)["metadata"]["continue"]
        self.silent.clear()
        self.pass_time(13)
        self.client = self.server.connect()
        self.send_request(f"{PODS}?limit=1&continue={token}", KUBELET, JSON)
        ((status, body),) = self.client_responses()
        self.assertEqual((410, "Expired"), (status, json.loads(body)["reason"]))
        self.assertEqual([], self.connections.played)
        self.send_request(f"{PODS}?limit=1&continue=more", KUBELET, JSON)
        self.assertIn("continue=more", self.received_request())


class ClientTimeoutTests(SlowDiskWorld):
    """A client with a short timeout: the cache is read while the API may still respond."""

    def setUp(self):
        """Begin the read."""
        super().setUp()
        self.send_request(f"{PODS}?timeout=6s", KUBELET, JSON)
        self.pass_time(4.1)
        self.assertEqual(1, len(self.cache.reads))

    def test_api_is_first(self):
        """The API's response is complete, and nothing follows it."""
        self.respond_json(pod_list(pod("new")))
        self.assert_listed("new")
        self.disk_reads()
        self.assert_listed("new")

    def test_api_begins_first(self):
        """Nor is anything inserted into a response of the API that has begun."""
        body = json.dumps(pod_list(pod("new"))).encode()
        self.respond(CHUNKED + chunk(body[:9]))
        self.disk_reads()
        self.respond(chunk(body[9:]) + chunk(b""))
        self.assert_listed("new")

    def test_disk_is_first(self):
        """The API's request is abandoned if its response has not begun."""
        self.disk_reads()
        self.assert_listed("kept")

    def test_disk_fails(self):
        """Then the API's response is awaited."""
        self.disk_fails()
        self.respond_json(pod_list(pod("new")))
        self.assert_listed("new")

    def test_cloud_is_lost(self):
        """The list is read again, and sent once."""
        self.ill.update(self.api_servers)
        self.pass_time(10)
        self.assertFalse(self.health.online)
        self.disk_reads()
        self.assert_listed("kept")


class EarlyOnSlowDiskTests(SlowDiskWorld):
    """The cache does not respond before the first health checks are complete."""

    def begin(self):
        """Do not start the checks yet."""

    def setUp(self):
        """Send a request that waits."""
        super().setUp()
        self.send_request(PODS, KUBELET, JSON)
        self.pass_time(0.2)
        self.disk_fails()

    def test_cloud(self):
        """Then the API responds."""
        self.health.startService()
        self.settle()
        self.respond_json(pod_list(pod("new")))
        self.assert_listed("new")

    def test_no_cloud(self):
        """Then the cache is read again."""
        self.ill.update(self.api_servers)
        self.health.startService()
        self.disk_reads()
        self.assert_listed("kept")
