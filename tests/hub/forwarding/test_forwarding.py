"""Requests through the hub while the cloud is reachable, and while its servers fail."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.logger import LogLevel, capturedLogs

from tests.http.support import request
from tests.hub.forwarding.world import (
    JSON,
    KUBELET,
    LEASES,
    OK,
    PODS,
    TOKEN,
    World,
    chunk,
    event,
    pod,
)
from yurttunnel.http.errors import RequestFailed
from yurttunnel.hub.forwarding.forwarding import RESPONSE_TIMEOUT
from yurttunnel.hub.upstream.connections import POOL

WATCHING = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class StopTests(World):
    """The hub stops: watches end, other requests are left to complete."""

    def drain(self):
        """Stop like the hub; close clients that have their responses."""
        drained = self.server.factory.drain()
        self.hub.end_watches()
        self.settle()
        self.client.receive_end()
        self.settle()
        return drained

    def test_forwarded_watch(self):
        """It ends normally, and so does its connection to the API."""
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.respond(WATCHING + chunk(event("ADDED", pod("one"))))
        self.successResultOf(self.drain())
        self.assertEqual([(200, event("ADDED", pod("one")))], self.client_responses())
        self.assertTrue(self.connections.played[0].closed_with)

    def test_watch_that_has_not_begun(self):
        """Its client gets a response with Retry-After, wherever the watch waits."""
        for waits in (True, False):
            self.health.online = waits
            self.patch(type(self.offline), "respond", lambda *arguments: None)
            self.client = self.server.connect()
            self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
            self.hub.end_watches()
            ((status, body),) = self.client_responses()
            self.assertEqual(503, status)
            self.assertIn(b"the hub is stopping", body)

    def test_watch_that_was_rejected(self):
        """The API's response to it is completed."""
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.respond(
            b"HTTP/1.1 410 Gone\r\nContent-Type: text/plain\r\nContent-Length: 8\r\n\r\ntoo "
        )
        self.hub.end_watches()
        self.respond(b"late")
        self.assertEqual([(410, b"too late")], self.client_responses())

    def test_others(self):
        """Requests that end by themselves get their responses."""
        self.send_request("/api/v1/namespaces/x/events", method=b"POST", body=b"{}")
        drained = self.server.factory.drain()
        self.hub.end_watches()
        self.assertNoResult(drained)
        self.respond(OK)
        self.client.receive_end()
        self.settle()
        self.successResultOf(drained)
        self.assertEqual([(200, b"ok")], self.client_responses("POST"))

    def test_watch_that_has_ended(self):
        """A watch that has ended is forgotten."""
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.respond(WATCHING + b"0\r\n\r\n")
        self.hub.end_watches()
        self.send_request("/version")
        self.respond(OK, 0)
        self.assertEqual([(200, b""), (200, b"ok")], self.client_responses("GET", "GET"))


class OnlineTests(World):
    """All servers are healthy."""

    def test_get(self):
        """A request is forwarded unchanged except for Host, and gets the API's response."""
        self.send_request("/healthz?verbose", b"User-Agent: curl/8", b"X-Other: 1")
        self.assertEqual(
            "GET /healthz?verbose HTTP/1.1\r\n"
            "Host: a:443\r\nUser-Agent: curl/8\r\nX-Other: 1\r\n\r\n",
            self.received_request(),
        )
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())
        self.assertEqual([], self.offline.calls)

    def test_connections_are_reused(self):
        """The next request uses the same connection."""
        for _ in range(3):
            self.send_request("/version")
            self.respond(OK)
        self.assertEqual(1, len(self.connections.played))

    def test_the_same_request_again(self):
        """Each request uses the next server, and requests a form that filters can process."""
        both = "application/vnd.kubernetes.protobuf,application/json"
        for server, change, accepted in (
            ("a", None, both),
            ("a", lambda obj: obj, "application/json"),
            ("a", None, both),
            ("b", None, both),
        ):
            self.api_servers[0].healthy = server == "a"
            self.filters.change = change
            self.send_request("/api/v1/nodes/edge-1", KUBELET, f"Accept: {both}".encode())
            sent = self.connections.played[-1].segments[-1].decode()
            self.assertIn(f"Host: {server}:443\r\n", sent)
            self.assertIn(f"\r\nAccept: {accepted}\r\n", sent)
            self.respond_json(pod("web"))
        self.assertEqual([200] * 4, [status for status, _ in self.client_responses(*["GET"] * 4)])

    def test_as_the_node(self):
        """A request without credentials is the node's."""
        self.send_request("/version")
        self.assertEqual([("a", True)], self.connections.keys)

    def test_token(self):
        """A request with a token uses it, on a connection without the node's certificate."""
        self.send_request("/version", TOKEN)
        self.assertEqual([("a", False)], self.connections.keys)
        self.assertIn("Authorization: Bearer abc\r\n", self.received_request())

    def test_edge_cache(self):
        """The header field that requests caching is not forwarded."""
        self.send_request("/version", b"Edge-Cache: true")
        self.assertNotIn("Edge-Cache", self.received_request())

    def test_errors_of_the_api(self):
        """Errors of the API are forwarded."""
        self.send_request("/api/v1/nodes/x", KUBELET)
        self.respond_json({"kind": "Status"}, b"500 Internal Server Error")
        self.assertEqual([(500, b'{"kind": "Status"}')], self.client_responses())

    def test_slow_answer(self):
        """A slow response of a healthy server is waited for, and the server is checked."""
        self.send_request(PODS, KUBELET)
        self.checked.clear()
        self.pass_time(2.1)
        self.assertEqual(["a", "b"], self.checked)
        self.pass_time(6)
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())

    def wait_for_no_response(self):
        """Let the first server miss the timeout, and assert that its connection is aborted."""
        self.pass_time(RESPONSE_TIMEOUT - 0.5)
        [first] = self.connections.played
        self.assertFalse(first.aborted)
        self.pass_time(1)
        self.assertTrue(first.aborted)

    def test_no_response(self):
        """After the timeout the next server gets the request, and its response is forwarded."""
        self.send_request(PODS, KUBELET)
        self.wait_for_no_response()
        self.assertEqual("b", self.connections.played[-1].server.host)
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())

    def test_no_response_to_a_write(self):
        """A write that a server may have received is not repeated after the timeout."""
        self.send_request(PODS, KUBELET, method=b"DELETE")
        self.wait_for_no_response()
        self.assertEqual(1, len(self.connections.played))
        self.assertEqual([504], [status for status, _ in self.client_responses("DELETE")])

    def test_renewed_certificate(self):
        """After a renewal new requests use a new connection, and the current one continues."""
        self.send_request("/version")
        self.connections._identity.node.rotate()
        self.respond(OK)
        self.send_request("/version")
        self.assertEqual(2, len(self.connections.played))
        self.respond(OK)
        self.assertEqual([(200, b"ok")] * 2, self.client_responses("GET", "GET"))

    def test_no_certificate(self):
        """A node without a certificate serves from its cache."""
        self.connections._identity.node = None
        self.send_request(PODS, KUBELET)
        self.assertEqual([(200, b"from the cache")], self.client_responses())


class LostServerTests(World):
    """A server fails while requests are in progress."""

    def test_rejected(self):
        """Another server is used for any method, because nothing was sent."""
        self.connections.refuses[self.api_servers[0]] = RequestFailed(502, "refused")
        self.send_request("/api/v1/nodes", method=b"POST", body=b"{}")
        self.assertEqual(["a", "b"], [host for host, _ in self.connections.keys])
        self.assertIn("Host: b:443", self.received_request())
        self.assertTrue(self.received_request().endswith("{}"))
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses("POST"))

    def test_closed_at_once(self):
        """The same applies if a connection is closed before anything was sent."""
        self.connections.closes.add(self.api_servers[0])
        self.send_request("/api/v1/nodes", method=b"POST", body=b"{}")
        self.assertEqual("", self.received_request(0))
        self.assertTrue(self.received_request().endswith("{}"))
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses("POST"))

    def test_reset(self):
        """A safe request is sent to another server."""
        self.send_request("/version")
        self.connections.played[0].break_off(ConnectionLost())
        self.settle()
        self.assertIn("Host: b:443", self.received_request())
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())

    def test_reset_of_a_write(self):
        """A write that may have been executed is not repeated, and its client gets an error."""
        self.send_request("/api/v1/nodes", method=b"POST", body=b"{}")
        self.connections.played[0].break_off(ConnectionLost())
        ((status, body),) = self.client_responses("POST")
        self.assertEqual(502, status)
        self.assertIn(b'"kind": "Status"', body)
        self.assertEqual(1, len(self.connections.played))

    def test_reset_of_an_upgrade(self):
        """A GET that upgrades to WebSocket may run a command, and is not repeated."""
        target = "/api/v1/namespaces/default/pods/web/exec?command=reboot"
        self.send_request(target, b"Connection: Upgrade", b"Upgrade: websocket")
        self.connections.played[0].break_off(ConnectionLost())
        ((status, body),) = self.client_responses()
        self.assertEqual(502, status)
        self.assertIn(b'"kind": "Status"', body)
        self.assertEqual(1, len(self.connections.played))

    def test_reset_everywhere(self):
        """Without any server left the cache responds, even before they are found unhealthy."""
        for server in self.api_servers:
            self.connections.refuses[server] = RequestFailed(502, "refused")
        self.send_request(PODS, KUBELET)
        self.assertEqual([(200, b"from the cache")], self.client_responses())
        self.send_request(PODS, KUBELET)
        self.pass_time(self.health.detection_seconds + 0.1)
        [line] = [line for line in self.lines if "although they are healthy" in line]
        self.assertIn(f"kubelet (list {PODS.partition('?')[0]})", line)
        self.assertIn("refused", line)

    def test_reset_by_an_outage(self):
        """If the servers are found unhealthy then, that is all that is logged."""
        for server in self.api_servers:
            self.connections.refuses[server] = RequestFailed(502, "refused")
            self.ill.add(server)
        self.send_request(PODS, KUBELET)
        self.pass_time(self.health.detection_seconds + 0.1)
        self.assertFalse(self.health.online)
        self.assertEqual([], [line for line in self.lines if "although they are healthy" in line])

    def test_reset_by_a_short_outage(self):
        """So it is if they are healthy again soon."""
        for server in self.api_servers:
            self.connections.refuses[server] = RequestFailed(502, "refused")
            self.ill.add(server)
        self.send_request(PODS, KUBELET)
        self.pass_time(1)
        self.assertFalse(self.health.online)
        self.ill.clear()
        self.pass_time(2.5)
        self.assertTrue(self.health.online)
        self.pass_time(self.health.detection_seconds)
        self.assertEqual([], [line for line in self.lines if "although they are healthy" in line])

    def test_servers_that_fail(self):
        """Each server to which a request could not be sent is checked at once."""
        self.checked.clear()
        for server in self.api_servers:
            self.connections.refuses[server] = RequestFailed(502, "refused")
        self.send_request("/version", method=b"POST", body=b"{}")
        self.pass_time(0.6)
        self.assertEqual(["a", "b"], self.checked)

    def test_not_cached(self):
        """If the data is not cached then, the response is 503, not 404."""
        self.offline.is_cached = succeed(False)
        for server in self.api_servers:
            self.connections.refuses[server] = RequestFailed(502, "refused")
        self.send_request(PODS, KUBELET)
        ((status, body),) = self.client_responses()
        self.assertEqual(503, status)
        self.assertIn(b"no API server can be reached", body)

    def test_black_hole(self):
        """If a server does not respond, the next one does, in less than five seconds."""
        self.send_request(PODS, KUBELET)
        self.silent.add(self.api_servers[0])
        self.pass_time(4.9)
        self.assertEqual(2, len(self.connections.played))
        self.assertTrue(self.connections.played[0].aborted)
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())

    def test_black_holes_everywhere(self):
        """If no server responds, the cache does in less than five seconds."""
        self.send_request(PODS, KUBELET)
        self.silent.update(self.api_servers)
        self.pass_time(4.9)
        self.send_request(PODS, KUBELET)
        self.assertEqual([(200, b"from the cache")] * 2, self.client_responses("GET", "GET"))

    def test_black_hole_while_connecting(self):
        """A connection attempt is cancelled when its server is found to be unhealthy."""
        self.connections.hangs.add(self.api_servers[0])
        self.send_request(PODS, KUBELET)
        self.silent.add(self.api_servers[0])
        self.pass_time(4.9)
        self.assertIn("Host: b:443", self.received_request())

    def write_in_line(self):
        """Queue a write for a connection, behind the maximum number of requests."""
        for _ in range(POOL.max_per_key):
            self.client = self.server.connect()
            self.send_request("/version")
        self.client = self.server.connect()
        self.send_request("/api/v1/namespaces/x/events", KUBELET, method=b"POST", body=b"{}")
        self.assertEqual(POOL.max_per_key, len(self.connections.played))

    def lose(self, server):
        """Make a server unhealthy."""
        self.ill.add(server)
        self.health.suspect(server)
        self.pass_time(2)
        self.assertFalse(server.healthy)

    def test_in_line(self):
        """A request queued for an unhealthy server uses another one, even a write."""
        self.write_in_line()
        self.lose(self.api_servers[0])
        asked = self.received_request(POOL.max_per_key)
        self.assertIn("Host: b:443", asked)
        self.assertIn("POST /api/v1/namespaces/x/events", asked)
        self.respond(OK, POOL.max_per_key)
        self.assertEqual([(200, b"ok")], self.client_responses("POST"))

    def test_in_line_everywhere(self):
        """Without any server left it is served locally, as if it had never been sent."""
        self.lose(self.api_servers[1])
        self.write_in_line()
        self.lose(self.api_servers[0])
        self.assertEqual([(200, b"from the cache")], self.client_responses("POST"))
        [call] = [call for call in self.offline.calls if call.request.verb == "create"]
        self.assertEqual(b"{}", call.body)

    def test_in_line_for_too_long(self):
        """An overloaded server is not unhealthy: the client of a queued request gets an error."""
        self.write_in_line()
        self.pass_time(POOL.waiting_timeout + 1)
        self.assertEqual(503, self.client_responses("POST")[0][0])
        self.assertEqual(POOL.max_per_key, len(self.connections.played))

    def test_watch(self):
        """A watch on a failed server ends at once and normally, so that its client resumes it."""
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.respond(WATCHING)
        self.silent.add(self.api_servers[0])
        self.health.suspect(self.api_servers[0])
        self.pass_time(2.6)
        self.assertEqual([(200, b"")], self.client_responses())

    def test_rejection_of_a_watch(self):
        """The response of a rejected watch is aborted, so that it does not look complete."""
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.respond(WATCHING.replace(b"200 OK", b"410 Gone") + b'6\r\n{"kind\r\n')
        self.connections.played[0].break_off(ConnectionLost())
        self.assertTrue(self.client.aborted)
        self.assertFalse(self.client.sent.endswith(b"0\r\n\r\n"))

    def test_length_of_a_watch(self):
        """A response with a length is not a watch, so it is aborted, too."""
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        with capturedLogs() as events:
            self.respond(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
            self.connections.played[0].break_off(ConnectionLost())
        self.assertTrue(self.client.aborted)
        self.assertEqual([], [each for each in events if each["log_level"] is LogLevel.error])

    def test_upgrade(self):
        """An upgraded connection ends with its server, too."""
        self.send_request(
            "/api/v1/namespaces/x/pods/y/exec?command=sh",
            b"Connection: Upgrade",
            b"Upgrade: SPDY/3.1",
            method=b"POST",
        )
        self.respond(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
        )
        self.client.receive(b"hello")
        self.settle()
        self.assertTrue(self.received_request().endswith("hello"))
        self.silent.add(self.api_servers[0])
        self.health.suspect(self.api_servers[0])
        self.pass_time(2.6)
        self.assertTrue(self.connections.played[0].aborted)
        self.assertIsNotNone(self.client.closed_with)

    def test_bad_gateway(self):
        """A gateway error of a proxy in front of a server has the server checked."""
        self.pass_time(1)
        self.checked.clear()
        self.send_request(PODS, KUBELET)
        self.respond_json({"kind": "Status"}, b"503 Service Unavailable")
        self.assertEqual(["a"], self.checked)
        self.assertEqual(503, self.client_responses()[0][0])


class TimeoutTests(World):
    """Clients that send their timeouts."""

    def test_get(self):
        """Cached data is served two seconds before the timeout, even if a server is healthy."""
        self.send_request("/api/v1/nodes/edge-1?resourceVersion=0&timeout=5s", KUBELET)
        self.pass_time(2.8)
        self.assertEqual([], self.offline.calls)
        self.pass_time(0.3)
        self.assertEqual([(200, b"from the cache")], self.client_responses())
        self.assertTrue(self.connections.played[0].aborted)

    def test_list(self):
        """Lists have another parameter for it."""
        self.send_request(f"{PODS}?timeoutSeconds=4", KUBELET)
        self.pass_time(2.1)
        self.assertEqual([(200, b"from the cache")], self.client_responses())

    def test_as_go_writes_it(self):
        """Go clients send durations with several units, and with fractions of a second."""
        for timeout, seconds in (("4.5s", 2.5), ("3500ms", 1.5), ("1m0s", 58), ("1m15s", 73)):
            self.offline.calls.clear()
            self.send_request(f"/api/v1/nodes/edge-1?timeout={timeout}", KUBELET)
            self.pass_time(seconds - 0.2)
            self.assertEqual([], self.offline.calls)
            self.pass_time(0.4)
            self.assertEqual(1, len(self.offline.calls), timeout)

    def test_not_cached(self):
        """If the data is not cached, the request goes on: only the API knows if it exists."""
        self.offline.is_cached = succeed(False)
        self.send_request("/api/v1/nodes/edge-1?timeout=10s", KUBELET)
        self.pass_time(9)
        self.assertEqual(b"", self.client.sent)
        self.respond(OK)
        self.assertEqual([(200, b"ok")], self.client_responses())

    def test_answered_while_it_is_looked_up(self):
        """The API's response wins if it arrives before the disk's."""
        self.offline.is_cached = is_cached = Deferred()
        self.send_request("/api/v1/nodes/edge-1?timeout=5s", KUBELET)
        self.pass_time(3.5)
        self.respond(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        is_cached.callback(True)
        self.respond(b"k")
        self.assertEqual([(200, b"ok")], self.client_responses())
        self.assertEqual([], self.offline.calls)

    def test_lost_while_it_is_looked_up(self):
        """So does the response after all servers have failed."""
        self.offline.is_cached = is_cached = Deferred()
        self.send_request("/api/v1/nodes/edge-1?timeout=5s", KUBELET)
        self.pass_time(3.1)
        self.silent.update(self.api_servers)
        self.health.suspect_all()
        self.pass_time(2.5)
        is_cached.callback(True)
        self.assertEqual([(200, b"from the cache")], self.client_responses())

    def test_client_leaves_while_it_is_looked_up(self):
        """No response is sent to a client that has disconnected."""
        self.offline.is_cached = is_cached = Deferred()
        self.send_request("/api/v1/nodes/edge-1?timeout=5s", KUBELET)
        self.pass_time(3.1)
        self.client.break_off(ConnectionLost())
        is_cached.callback(True)
        self.assertEqual([], self.offline.calls)

    def test_answered_in_time(self):
        """The timer ends with the response."""
        self.send_request("/api/v1/nodes/edge-1?timeout=5s", KUBELET)
        self.respond_json({"kind": "Status"}, b"403 Forbidden")
        self.pass_time(6)
        self.assertEqual([], self.offline.calls)

    def test_others(self):
        """Watches, data that is not cached, and shorter timeouts are left to the API."""
        for target, fields in (
            (f"{PODS}?watch=1&timeoutSeconds=4", (KUBELET, JSON)),
            (f"{PODS}?timeoutSeconds=4", (b"User-Agent: kubectl/1",)),
            (f"{PODS}?timeout=2s", (KUBELET,)),
            (f"{PODS}?timeout=1s3m", (KUBELET,)),
        ):
            self.send_request(target, *fields)
            self.pass_time(5)
            self.assertEqual([], self.offline.calls)
            self.respond(OK)


class ReplayTests(World):
    """Writes whose servers fail."""

    servers = ("a",)

    def test_body(self):
        """The offline side gets the client's body, if no server can have received it."""
        self.connections.refuses[self.api_servers[0]] = RequestFailed(502, "refused")
        self.send_request("/api/v1/namespaces/x/events", KUBELET, method=b"POST", body=b"{1}")
        (call,) = self.offline.calls
        self.assertEqual(b"{1}", call.body)

    def test_long_body(self):
        """A body that is too long to be stored is rejected."""
        self.connections.refuses[self.api_servers[0]] = RequestFailed(502, "refused")
        self.send_request("/api/v1/nodes", KUBELET, method=b"POST", body=bytes(300_000))
        ((status, _),) = self.client_responses("POST", closed=True)
        self.assertEqual(502, status)
        self.assertEqual([], self.offline.calls)


class PacedTests(World):
    """A write that is retried in the middle of its body."""

    def test_pace(self):
        """A server that reads slowly has the rest of the body paused."""
        self.connections.refuses[self.api_servers[0]] = RequestFailed(502, "refused")
        self.send_request(PODS)
        self.respond(OK)
        length = b"Content-Length: 300000"
        head = request(b"/api/v1/nodes", length, method=b"POST", host=b"127.0.0.1:10261")
        self.client.receive(head + bytes(150_000))
        self.assertEqual(1, len(self.connections.played))
        self.assertFalse(self.client.reading)
        self.settle()
        self.assertTrue(self.client.reading)
        self.client.receive(bytes(150_000))
        self.settle()
        self.assertTrue(self.connections.played[0].sent.endswith(b"\r\n\r\n" + bytes(300_000)))


class ChangingFiltersTests(World):
    """Filters change while a watch is open."""

    def change(self):
        """Change the filters; nothing else is sent to the API."""
        [end] = self.filters.ends
        end()
        self.settle()
        self.assertEqual([], self.filters.ends)

    def watch(self):
        """Begin a watch with one complete frame and a part of the next."""
        self.send_request(f"{PODS}?watch=1&resourceVersion=7", KUBELET, JSON)
        frame = event("ADDED", pod("a"))
        self.respond(WATCHING + chunk(frame + frame[:20]))

    def test_changed(self):
        """A filtered watch ends with the event that makes clients list again."""
        self.filters.change = lambda obj: obj
        self.watch()
        self.change()
        ((_, body),) = self.client_responses()
        first, last = (json.loads(line) for line in body.splitlines())
        self.assertEqual(("ADDED", "ERROR"), (first["type"], last["type"]))
        self.assertEqual(410, last["object"]["code"])
        self.assertTrue(self.connections.played[-1].aborted)

    def test_passed(self):
        """An unfiltered watch is aborted."""
        self.watch()
        self.change()
        self.assertTrue(self.client.aborted)

    def test_lists(self):
        """Other requests are not followed."""
        self.send_request(PODS, KUBELET, JSON)
        self.assertEqual([], self.filters.ends)


class KubeletLeaseTests(World):
    """The kubelet's requests for its Lease."""

    def test_life(self):
        """The hub responds in the media type of the request."""
        protobuf = b"Content-Type: application/vnd.kubernetes.protobuf"
        self.send_request(f"{LEASES}/edge-1?timeout=10s", KUBELET)
        self.send_request(LEASES, KUBELET, protobuf, method=b"POST", body=b"one")
        self.send_request(f"{LEASES}/edge-1", KUBELET, protobuf, method=b"PUT", body=b"two")
        self.send_request(f"{LEASES}/edge-1", KUBELET)
        first, *others = self.client_responses("GET", "POST", "PUT", "GET")
        self.assertEqual(404, first[0])
        self.assertIn(b'"NotFound"', first[1])
        self.assertEqual([(201, b"one"), (200, b"two"), (200, b"two")], others)
        self.assertEqual([], self.connections.keys)

    def test_lives(self):
        """The kubelet has forty seconds for its next request, counted from the start, too."""
        self.assertTrue(self.kubelet_lease.is_alive())
        self.pass_time(39, 1)
        self.client = self.server.connect()
        self.send_request(f"{LEASES}/edge-1", KUBELET)
        self.pass_time(39, 1)
        self.assertTrue(self.kubelet_lease.is_alive())
        self.pass_time(1, 1)
        self.assertFalse(self.kubelet_lease.is_alive())

    def test_of_others(self):
        """Other Leases, and other clients, are forwarded to the API."""
        for target, agent in (
            (f"{LEASES}/edge-2", KUBELET),
            (f"{LEASES}/edge-1", b"User-Agent: kubectl/1"),
            ("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/edge-1", KUBELET),
        ):
            self.send_request(target, agent)
            self.assertIn(f"GET {target}", self.received_request())
            self.respond(OK)


class OddRequestTests(World):
    """Requests that are not for the API."""

    def test_rejected(self):
        """They are rejected with a Status, and not forwarded."""
        for target, method, status in (
            ("/api/v1/namespaces/..%2f/pods", b"GET", 400),
            ("/api/v1/pods/%00", b"GET", 400),
            ("/api/v1/pods/" + "x" * 254, b"GET", 400),
        ):
            self.client = self.server.connect()
            self.send_request(target, KUBELET, method=method)
            ((found, body),) = self.client_responses()
            self.assertEqual(status, found)
            self.assertIn(b'"Status"', body)
        self.assertEqual([], self.connections.keys)
