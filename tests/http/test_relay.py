"""Forwarding: both directions, keep-alive connections, and timeouts."""

from __future__ import annotations

import gc
import random
import weakref
from functools import partial

from tests.http.relaying import CHUNKED, OK, UPGRADE, GivenForwarding, RelayTestCase
from tests.http.support import request, responses, settle
from yurttunnel.http.pool import ConnectionPool, PoolSettings
from yurttunnel.http.relay import (
    ForwardedRequest,
    Relay,
)


class ForwardTests(RelayTestCase):
    """Forwarding of requests and responses."""

    def test_simple(self):
        """Request and response are forwarded in one write each, and connections are kept."""
        for number in range(3):
            self.send(request(b"/%d?q" % number, b"X-A: b"))
            self.assertEqual(request(b"/%d?q" % number, b"X-A: b"), self.origin.segments[-1])
            self.answer(OK)
            self.assertEqual(OK, self.client.segments[-1])
        self.assertEqual((1, 3, 3), (len(self.origins), len(self.client.segments), len(self.ends)))
        self.assertEqual([None] * 3, self.ends)

    def test_one_request_for_many_exchanges(self):
        """A serialized request is sent each time, with the fields of one exchange appended."""
        self.pool = ConnectionPool(self.clock, self.connect)
        self.addCleanup(self.pool.close)
        fields = [(b"Host", b"node"), (b"Connection", b"X-Mine"), (b"X-Mine", b"1")]
        same = ForwardedRequest(b"GET", b"/", fields)
        numbers = iter((b"1", b"2"))
        self.server.handler.answer = lambda exchange: GivenForwarding(
            self.relay,
            exchange,
            partial(self.pool.acquire, "node"),
            same,
            lambda failure: (502, ""),
            added=((b"X-Request-Id", next(numbers)),),
        ).begin()
        for number in (b"1", b"2"):
            self.send(request())
            self.assertEqual(request(b"/", b"X-Request-Id: " + number), self.origin.segments[-1])
            self.answer(OK)
        self.assertEqual((1, 1), (len(self.origins), self.pool.statistics.reuses))

    def test_what_connections_keep_that_idle(self):
        """Idle connections do not retain an ended exchange and its heads."""
        watched = []

        def forward(exchange):
            self.forward(exchange)
            watched.append(weakref.ref(exchange))
            self.server.handler.exchanges.clear()

        self.server.handler.answer = forward
        for method, body in ((b"GET", b""), (b"PUT", b"12345")):
            length = b"Content-Length: %d" % len(body)
            self.send(request(b"/", length, method=method))
            self.send(body)
            self.answer(OK[:-1])
            self.answer(OK[-1:])
            gc.collect()
            self.assertEqual((1, None), (self.pool.statistics.idle, watched.pop()()))
        self.assertEqual([200, 200], [each[0] for each in self.responses("GET", "PUT")])

    def test_upgrade_after_the_same_request_without_one(self):
        """A request with an upgrade is serialized separately."""
        same = ForwardedRequest(b"GET", b"/", [(b"Host", b"node")])
        plain = same.written(False, None)
        self.assertIs(plain, same.written(False, None))
        upgrade = same.written(False, b"SPDY/3.1")
        self.assertEqual((False, True), (plain.upgrade, upgrade.upgrade))
        self.assertEqual(request(b"/", *UPGRADE), upgrade.head)
        self.assertIn(b"Transfer-Encoding: chunked\r\n", same.written(True, None).head)
        self.assertEqual(request(), same.written(False, None).head)

    def test_a_long_request(self):
        """A long request is not cached, since it is not sent repeatedly."""
        for size, kept in ((8000, True), (9000, False)):
            long = ForwardedRequest(b"GET", b"/", [(b"Host", b"node"), (b"X", b"x" * size)])
            first, second = long.written(False, None), long.written(False, None)
            self.assertEqual((first, kept), (second, first is second))

    def test_fields_of_the_connections(self):
        """Hop-by-hop fields are not forwarded, in either direction."""
        self.send(
            request(
                b"/",
                b"Connection: X-Secret, close",
                b"X-Secret: 1",
                b"Keep-Alive: timeout=5",
                b"TE: trailers",
                b"Proxy-Authorization: Basic x",
                b"Upgrade: h2c",
                b"X-Kept: yes",
            )
        )
        self.assertEqual(request(b"/", b"X-Kept: yes"), self.origin.sent)
        self.answer(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Mine\r\nX-Mine: 1\r\n"
            b"Keep-Alive: timeout=5\r\nX-Kept: yes\r\n\r\nok"
        )
        self.assertEqual(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kept: yes\r\nConnection: close\r\n\r\nok",
            self.client.sent,
        )

    def test_request_body(self):
        """A body is forwarded as it arrives, with a length, or chunked with trailers."""
        self.send_slowly(request(b"/", b"Content-Length: 4", method=b"PUT", body=b"ab"))
        self.assertTrue(self.origin.sent.endswith(b"\r\n\r\nab"))
        self.send(b"cd")
        self.assertTrue(self.origin.sent.endswith(b"\r\n\r\nabcd"))
        self.answer(OK)
        trailers = b"Authorization: Bearer t\r\nETag: v\r\nX-Tunnel-Proxy-Dest: a:1\r\n\r\n"
        body = b"1\r\na\r\n2\r\nbc\r\n0\r\n" + trailers
        self.send(request(b"/", CHUNKED, method=b"POST", body=body))
        self.assertIn(b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", self.origin.sent)
        self.assertTrue(self.origin.sent.endswith(b"0\r\nETag: v\r\n\r\n"))
        self.answer(OK)
        self.assertEqual([200, 200], [a[0] for a in self.responses("PUT", "POST")])
        self.assertEqual(1, len(self.origins))

    def test_empty_post(self):
        """A request without a body, but with a method that usually has one, stays that."""
        self.send(request(b"/", method=b"POST"))
        self.assertTrue(self.origin.sent.endswith(b"Content-Length: 0\r\n\r\n"))
        self.answer(OK)
        self.send(request(b"/", b"Content-Length: 0", method=b"POST"))
        self.answer(OK)
        self.assertEqual(1, self.pool.statistics.idle)

    def test_streamed_response(self):
        """Each piece of a response is forwarded when it arrives, and the head before any."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.assertIn(b"200 OK", self.client.sent)
        self.answer(b"3\r\nabc\r\n")
        self.assertTrue(self.client.sent.endswith(b"3\r\nabc\r\n"))
        self.answer(b"0\r\nETag: v\r\n\r\n")
        self.assertEqual((b"abc", {b"etag": b"v"}), self.responses()[0][2:])

    def test_until_close(self):
        """A body that ends with the origin's connection becomes chunked; the client's is kept."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\n\r\nabc")
        self.origin.receive_end()
        ((_, fields, body, _),) = self.responses()
        self.assertEqual((b"chunked", b"abc"), (fields[b"transfer-encoding"], body))
        self.send(request())
        self.answer(OK)
        self.assertEqual(2, len(self.origins))
        self.assertEqual(2, len(self.responses("GET", "GET")))

    def test_old_client(self):
        """For an HTTP/1.0 client a body without length ends with the connection."""
        self.send(request(version=b"1.0"))
        self.assertTrue(self.origin.sent.startswith(b"GET / HTTP/1.1\r\n"))
        self.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        self.assertTrue(self.client.sent.endswith(b"Connection: close\r\n\r\nabc"))
        self.assertTrue(self.client.write_ended)
        self.assertEqual(1, self.pool.statistics.idle)

    def test_without_body(self):
        """Responses without a body are forwarded with the fields about it."""
        self.send(request(method=b"HEAD"))
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        self.send(request())
        self.answer(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n")
        self.send(request())
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        head, not_modified, no_content = self.responses("HEAD", "GET", "GET")
        self.assertEqual(b"5", head[1][b"content-length"])
        self.assertEqual(b"5", not_modified[1][b"content-length"])
        self.assertNotIn(b"content-length", no_content[1])
        self.assertEqual(1, len(self.origins))

    def test_expectation(self):
        """An expectation is forwarded, and so are the origin's 100 and its refusal."""
        fields = (b"Content-Length: 2", b"Expect: 100-continue")
        self.send(request(b"/", *fields, method=b"PUT"))
        self.assertIn(b"Expect: 100-continue\r\n", self.origin.sent)
        self.assertEqual(b"", self.client.sent)
        self.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.assertEqual(b"HTTP/1.1 100 Continue\r\n\r\n", self.client.sent)
        self.send(b"ab")
        self.answer(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\nConnection: close\r\n\r\n" + OK)
        self.assertEqual([100, 103, 200], [a[0] for a in self.responses("PUT")])
        self.send(request(b"/", *fields, method=b"PUT"))
        self.answer(b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
        answers = self.responses("PUT", "PUT")
        self.assertEqual((417, b"close"), (answers[-1][0], answers[-1][1][b"connection"]))

    def test_length_of_interim_responses(self):
        """Content-Length in an interim response is dropped (RFC 9110 8.6)."""
        self.send(request())
        self.answer(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\nLink: a\r\n\r\n" + OK)
        self.assertEqual(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK, self.client.sent)

    def test_pipelining(self):
        """Pipelined requests are forwarded one after the other, on one connection."""
        self.send(request(b"/1") + request(b"/2"))
        self.assertEqual(request(b"/1"), self.origin.sent)
        self.answer(OK)
        self.assertEqual(request(b"/1") + request(b"/2"), self.origin.sent)
        self.answer(OK)
        self.assertEqual((2, 1), (len(self.responses("GET", "GET")), len(self.origins)))

    def test_much_data(self):
        """Megabytes arrive completely in both directions, in pieces of any size."""
        data = random.Random(1).randbytes(3_000_000)
        self.send_slowly(request(b"/", b"Content-Length: 3000000", method=b"PUT"))
        self.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(data), 50_000):
            piece = data[start : start + 50_000]
            self.send(piece)
            self.answer(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.answer(b"0\r\n\r\n")
        self.assertEqual(data, self.responses("PUT")[0][2])
        self.assertTrue(self.origin.sent.endswith(data))


class PoolTests(RelayTestCase):
    """Many clients of one origin."""

    pool_settings = PoolSettings(max_per_key=4)

    def test_many_clients(self):
        """Twenty keep-alive clients share four connections."""
        clients = [self.server.connect() for _ in range(20)]
        for _ in range(3):
            for client in clients:
                client.receive(request())
            answered = True
            while answered:
                settle(self.clock, *clients, *self.origins)
                answered = False
                for origin in self.origins:
                    if origin.sent.count(b"\r\n\r\n") > getattr(origin, "answered", 0):
                        origin.answered = getattr(origin, "answered", 0) + 1
                        origin.receive(OK)
                        answered = True
        for client in clients:
            self.assertEqual(3, len(responses(client.sent, "GET", "GET", "GET")))
        self.assertEqual(4, len(self.origins))

    def test_streams_do_not_starve_requests(self):
        """With many followed logs a short request is served at once."""
        streams = [self.server.connect() for _ in range(10)]
        for stream in streams:
            stream.receive(request(b"/logs?follow"))
            settle(self.clock, stream, *self.origins)
            self.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self.clock.advance(1)
        self.client = self.server.connect()
        self.send(request(b"/short"))
        self.answer(OK)
        self.assertEqual(200, self.responses()[0][0])


class TimerTests(RelayTestCase):
    """The number of timers."""

    def test_no_timer_for_each_request(self):
        """However many requests there are, the clock has only a few delayed calls."""
        for _ in range(100):
            self.send(request())
            self.answer(OK)
        self.assertLess(len(self.clock.getDelayedCalls()), 8)

    def test_no_timer_is_left(self):
        """After everything has been closed no timer is left."""
        self.send(request(b"/", b"Content-Length: 1000000", method=b"PUT"))
        self.client.receive(bytes(500_000))
        self.assertEqual(1, len(self.relay.uploads))
        for closed in (self.relay, self.server.factory, self.pool):
            closed.close()
        self.settle()
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_no_deadline(self):
        """Without a timeout an origin may take any time."""
        relay = Relay(self.clock)
        self.addCleanup(relay.close)
        self.relay = relay
        self.send(request())
        self.clock.advance(10_000)
        self.answer(OK)
        self.assertEqual(200, self.responses()[0][0])
