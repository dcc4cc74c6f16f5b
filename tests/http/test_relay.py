"""Requests that are answered by another connection."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import Server, request, responses, settle
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import ConnectionPool, PoolSettings
from yurttunnel.http.relay import (
    BODY_BEGINNING,
    BODY_PATIENCE,
    ForwardedRequest,
    Relay,
    RelaySettings,
)
from yurttunnel.http.server import ServerSettings

CHUNKED = b"Transfer-Encoding: chunked"
UPGRADE = (b"Connection: Upgrade", b"Upgrade: SPDY/3.1")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


class RelayTestCase(SynchronousTestCase):
    """A client, a server that forwards, and an origin: client and origin are played."""

    settings = RelaySettings(response_timeout=30)
    pool_settings = PoolSettings()
    caller = None
    patient = False
    client_kind = MemoryConnection
    origin_kind = MemoryConnection

    def setUp(self):
        """Connect the client."""
        # Bodies come byte by byte here, and the time for that is not what is tested.
        self.server = Server(ServerSettings(body_timeout=60, min_body_bytes=1))
        self.clock = self.server.clock
        self.relay = Relay(self.clock, self.settings)
        self.pool = ConnectionPool(self.clock, self.connect, self.pool_settings)
        self.origins = []
        self.attempts = []
        self.instant = True
        self.server.handler.answer = self.forward
        self.client = self.server.connect(self.client_kind)
        self.addCleanup(self.server.factory.close)
        self.addCleanup(self.pool.close)
        self.addCleanup(self.relay.close)

    def connect(self, key, caller):
        """Connect to the origin, at once or when the test says so."""
        attempt = Deferred()
        self.attempts.append(attempt)
        if self.instant:
            self.succeed()
        return attempt

    def succeed(self):
        """Have the newest attempt succeed."""
        connection = ClientConnection(self.clock)
        self.origins.append(self.origin_kind(self.clock).open(connection))
        self.attempts[-1].callback(connection)

    def forward(self, exchange):
        """Forward a request."""
        head = exchange.head
        self.relay.forward(
            exchange,
            lambda **how: self.pool.acquire("node", caller=self.caller, **how),
            ForwardedRequest(head.method, head.target, head.fields),
            lambda failure: (502, f"edge-1 cannot be reached: {failure.type.__name__}"),
            "the kubelet of edge-1",
            patient=self.patient,
        )

    @property
    def origin(self):
        """The newest connection to the origin."""
        return self.origins[-1]

    @property
    def ends(self):
        """The errors with which exchanges have ended."""
        return [error for _, error in self.server.handler.ends]

    def settle(self):
        """Let everything move."""
        settle(self.clock, self.client, *self.origins)

    def send(self, data):
        """Have the client send."""
        self.client.receive(data)
        self.settle()

    def send_slowly(self, data):
        """Have the client send the beginning of a body that is not waited for any longer."""
        self.send(data)
        self.clock.advance(BODY_PATIENCE)
        self.settle()

    def answer(self, data):
        """Have the origin send."""
        self.origin.receive(data)
        self.settle()

    def responses(self, *methods, closed=False):
        """Read what the client has got."""
        self.settle()
        return responses(self.client.sent, *(methods or ("GET",)), closed=closed)

    def assert_refused(self, status, text, closed=False):
        """Check the one response, a sentence."""
        ((found, _, body, _),) = self.responses(closed=closed)
        self.assertEqual(status, found)
        self.assertIn(text, body)


class ForwardTests(RelayTestCase):
    """What is passed on, and how."""

    def test_simple(self):
        """A request and its response pass, in one write each, and connections are kept."""
        for number in range(3):
            self.send(request(b"/%d?q" % number, b"X-A: b"))
            self.assertEqual(request(b"/%d?q" % number, b"X-A: b"), self.origin.segments[-1])
            self.answer(OK)
            self.assertEqual(OK, self.client.segments[-1])
        self.assertEqual((1, 3, 3), (len(self.origins), len(self.client.segments), len(self.ends)))
        self.assertEqual([None] * 3, self.ends)

    def test_fields_of_the_connections(self):
        """What concerns one connection stays on it, both ways."""
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
        """A body passes as it comes, of known length or in chunks with trailers."""
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
        """A request without a body of a method that has one is forwarded as such."""
        self.send(request(b"/", method=b"POST"))
        self.assertTrue(self.origin.sent.endswith(b"Content-Length: 0\r\n\r\n"))
        self.answer(OK)
        self.send(request(b"/", b"Content-Length: 0", method=b"POST"))
        self.answer(OK)
        self.assertEqual(1, self.pool.statistics.idle)

    def test_streamed_response(self):
        """A piece of a response passes when it comes, the head before there is any."""
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
        """For a client of HTTP/1.0 a body without length ends with the connection."""
        self.send(request(version=b"1.0"))
        self.assertTrue(self.origin.sent.startswith(b"GET / HTTP/1.1\r\n"))
        self.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        self.assertTrue(self.client.sent.endswith(b"Connection: close\r\n\r\nabc"))
        self.assertTrue(self.client.write_ended)
        self.assertEqual(1, self.pool.statistics.idle)

    def test_without_body(self):
        """Responses without a body pass with what they say of it."""
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
        """An expectation is passed on, and so is the origin's 100 and its refusal."""
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
        """What an origin says of a length before its final response is left out (RFC 9110 8.6)."""
        self.send(request())
        self.answer(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\nLink: a\r\n\r\n" + OK)
        self.assertEqual(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK, self.client.sent)

    def test_pipelining(self):
        """Pipelined requests go to the origin one after the other, on one connection."""
        self.send(request(b"/1") + request(b"/2"))
        self.assertEqual(request(b"/1"), self.origin.sent)
        self.answer(OK)
        self.assertEqual(request(b"/1") + request(b"/2"), self.origin.sent)
        self.answer(OK)
        self.assertEqual((2, 1), (len(self.responses("GET", "GET")), len(self.origins)))

    def test_much_data(self):
        """Megabytes pass whole both ways, in pieces of any size."""
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


class BackPressureTests(RelayTestCase):
    """A side that does not keep up stops the other, and nothing grows without bound."""

    PIECE = 16 * 1024

    def fill(self, source):
        """Send while it is read; give how much went in."""
        total = 0
        while source.reading and total < 10_000_000:
            source.receive(bytes(self.PIECE))
            total += self.PIECE
        return total

    def test_stalled_client(self):
        """A client that takes nothing stops the origin."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        total = self.fill(self.origin)
        self.assertLessEqual(total, 64 * 1024 + 2 * self.PIECE)
        self.settle()
        self.assertTrue(self.origin.reading)
        self.assertEqual(total, len(self.client.sent.partition(b"\r\n\r\n")[2]))

    def test_stalled_origin(self):
        """An origin that takes nothing stops the client."""
        self.send(request(b"/", b"Content-Length: 10000000", method=b"PUT"))
        total = self.fill(self.client)
        self.assertLessEqual(total, 64 * 1024 + 2 * self.PIECE)
        self.settle()
        self.assertTrue(self.client.reading)
        self.assertEqual(total, len(self.origin.sent.partition(b"\r\n\r\n")[2]))

    def test_before_there_is_a_connection(self):
        """While the origin is being connected one read of a body is taken."""
        self.instant = False
        self.send(request(b"/", b"Content-Length: 10000000", method=b"PUT"))
        self.assertEqual(self.PIECE, self.fill(self.client))
        self.succeed()
        self.settle()
        self.assertTrue(self.client.reading)
        self.assertEqual(self.PIECE, len(self.origin.sent.partition(b"\r\n\r\n")[2]))

    def test_client_leaves_while_stalled(self):
        """A client that leaves while it is stalled takes the origin with it."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        self.fill(self.origin)
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.origin.aborted)

    def test_origin_closes_while_stalled(self):
        """What the origin has sent still reaches a client that was stalled."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\n\r\n")
        total = self.fill(self.origin)
        self.origin.break_off(ConnectionDone())
        self.assertEqual(total, len(self.responses()[0][2]))


class StalledUploadTests(RelayTestCase):
    """An origin that takes nothing of a request's body."""

    def stall(self):
        """Have the client send more than the origin takes."""
        self.client.receive(request(b"/", b"Content-Length: 10000000", method=b"PUT"))
        self.fill()

    def fill(self):
        """Have the client send while it is read."""
        while self.client.reading:
            self.client.receive(bytes(16 * 1024))

    def assert_given_up(self, seconds=30):
        """Check that both sides are given up after their time, not before."""
        self.clock.advance(seconds - 1)
        self.assertFalse(self.origin.aborted)
        self.clock.advance(1)
        self.assertTrue(self.origin.aborted)
        self.assertEqual(0, self.pool.statistics.in_use)

    def test_never_takes_it(self):
        """It is given up in the time for an answer, and the client is told."""
        self.stall()
        self.assert_given_up()
        settle(self.clock, self.client)
        ((status, _, body, _),) = self.responses("PUT", closed=True)
        self.assertEqual(504, status)
        self.assertIn(b"edge-1: nothing of the request's body was taken for 30 seconds", body)
        self.assertTrue(self.client.write_ended)

    def test_patience(self):
        """Patience is for the answer, not for the request."""
        self.patient = True
        self.stall()
        self.assert_given_up()

    def test_without_a_timeout(self):
        """Also an origin that may take all the time for its answer has a minute for a body."""
        self.relay = Relay(self.clock)
        self.addCleanup(self.relay.close)
        self.stall()
        self.assert_given_up(60)

    def test_slow_origin(self):
        """An origin that takes some of it again and again has all the time."""
        self.stall()
        for _ in range(10):
            self.clock.advance(29)
            self.origin.turn()
            self.assertTrue(self.client.reading)
            self.fill()
        self.assertFalse(self.origin.aborted)
        self.assert_given_up()

    def test_taken_in_the_end(self):
        """Once the body has been taken, the time is that of the answer."""
        self.send(request(b"/", b"Content-Length: 100000", method=b"PUT"))
        self.client.receive(bytes(100_000))
        self.clock.advance(29)
        self.settle()
        self.clock.advance(0.5)
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])
        self.clock.advance(100)
        self.assertEqual([None], self.ends)

    def test_patience_after_the_body(self):
        """A body that has been read to its end is not waited for; patience begins there."""
        self.patient = True
        self.send(request(b"/", b"Content-Length: 100000", method=b"PUT"))
        self.client.receive(bytes(100_000))
        self.clock.advance(1000)
        self.settle()
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])

    def test_client_that_has_left(self):
        """A client whose end nobody can see is let go of."""
        self.stall()
        self.client.receive_end()
        self.assertFalse(self.origin.aborted)
        self.assert_given_up()
        settle(self.clock, self.client)
        self.clock.advance(5)
        settle(self.clock, self.client)
        self.assertEqual(set(), self.server.factory.connections)
        self.assertEqual(1, len(self.ends))

    def test_client_that_is_seen_to_leave(self):
        """A client that is seen to leave leaves no deadline behind."""
        self.stall()
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.origin.aborted)
        self.assertEqual(0, len(self.relay.uploads))

    def test_after_the_answer_has_begun(self):
        """It is so when the answer has begun; then both are cut."""
        self.stall()
        self.origin.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.assert_given_up()
        self.assertTrue(self.client.aborted)

    def test_answer_ends_it(self):
        """A complete answer ends the waiting."""
        self.stall()
        self.origin.receive(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        self.assertEqual(0, len(self.relay.uploads))
        self.assertEqual(413, self.responses("PUT")[0][0])


class BodyBeginningTests(RelayTestCase):
    """A connection to the origin is asked for when the body is there, or will not be soon."""

    pool_settings = PoolSettings(max_per_key=2, max_uploads_per_key=2)
    caller = "somebody"

    def begin(self, *fields, body=b"", target=b"/"):
        """Have a new client begin a request with a body."""
        self.client = self.server.connect()
        self.send(request(target, *fields, method=b"PUT", body=body))

    def test_a_small_body_holds_nothing_before_it_is_complete(self):
        """Then it is sent whole, as a request like any other."""
        self.begin(CHUNKED, body=b"2\r\nab\r\n")
        self.send(b"1\r\nc\r\n0\r\n")
        self.assertEqual([], self.attempts)
        self.send(b"X-Checksum: v\r\n\r\n")
        self.assertIn(b"\r\n\r\n3\r\nabc\r\n0\r\n", self.origin.sent)
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])

    def test_a_long_body_is_not_kept(self):
        """What has come is bounded; more is read once there is a connection."""
        self.instant = False
        self.begin(b"Content-Length: 1000000", body=bytes(BODY_BEGINNING - 1))
        self.assertEqual([], self.attempts)
        self.assertTrue(self.client.reading)
        self.send(b"x")
        self.assertEqual(1, len(self.attempts))
        self.assertFalse(self.client.reading)
        self.succeed()
        self.settle()
        self.assertTrue(self.client.reading)
        self.assertTrue(self.origin.sent.endswith(b"\0x"))

    def test_a_body_that_ends_while_the_origin_is_connected(self):
        """Nothing of it is lost, nor sent twice."""
        self.instant = False
        self.begin(b"Content-Length: 3", body=b"a")
        self.clock.advance(BODY_PATIENCE)
        self.send(b"bc")
        self.succeed()
        self.settle()
        self.assertTrue(self.origin.sent.endswith(b"\r\n\r\nabc"))
        self.assertEqual(1, len(self.attempts))

    def test_unfinished_bodies_take_nothing_from_others(self):
        """However many there are, with a length, in chunks, held back or following something."""
        for fields in (
            [b"Content-Length: 9"],
            [CHUNKED],
            [b"Content-Length: 9", b"Expect: 100-continue"],
        ):
            for _ in range(10):
                self.begin(*fields)
                self.begin(*fields, body=b"1")
        self.clock.advance(BODY_PATIENCE)
        self.settle()
        self.assertEqual(1, len(self.origins), "the share of one caller")
        self.client = self.server.connect()
        self.send(request())
        self.answer(OK)
        self.assertEqual(200, self.responses()[0][0])
        self.begin(b"Content-Length: 2", body=b"ab")
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])

    def test_a_client_that_leaves_first(self):
        """Nobody is asked for anything for a client that is gone, or whose body is malformed."""
        self.begin(b"Content-Length: 3", body=b"a")
        self.client.receive_end()
        self.begin(CHUNKED, body=b"xx\r\n")
        self.assertEqual(400, self.responses("PUT", closed=True)[0][0])
        self.clock.advance(2 * BODY_PATIENCE)
        self.assertEqual([], self.attempts)

    def test_patience_is_for_complete_requests(self):
        """Who is to be answered at any time does not hold a body back for ever."""
        self.patient = True
        self.begin(b"Content-Length: 3", b"Expect: 100-continue")
        self.clock.advance(30)
        self.assertEqual(504, self.responses("PUT")[-1][0])
        self.assertTrue(self.origin.aborted)


class ExpectationTests(RelayTestCase):
    """A client that holds its body back until it is told to go on."""

    def expect(self, framing=b"Content-Length: 2"):
        """Have a new client begin a request."""
        self.client = self.server.connect()
        self.send(request(b"/", framing, b"Expect: 100-continue", method=b"PUT"))

    def assert_504_after(self, seconds):
        """Check that so long nothing happens, and then the origin is given up."""
        self.clock.advance(seconds - 1)
        self.settle()
        self.assertFalse(self.origin.aborted)
        self.clock.advance(1)
        self.assertEqual(504, self.responses("PUT")[-1][0])
        self.assertTrue(self.origin.aborted)

    def test_nobody_tells_it(self):
        """It is told in the time for an answer that none came."""
        for framing in (b"Content-Length: 2", CHUNKED):
            self.expect(framing)
            self.assert_504_after(30)

    def test_told_to_go_on(self):
        """Once it has been told, its upload has all the time."""
        self.expect()
        self.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
        for piece in (b"a", b"b"):
            self.clock.advance(31)
            self.send(piece)
        self.assert_504_after(30)

    def test_goes_on_by_itself(self):
        """So has the upload of one that does not wait any longer."""
        self.expect()
        for piece in (b"a", b"b"):
            self.clock.advance(20)
            self.send(piece)
        self.assertTrue(self.origin.sent.endswith(b"\r\n\r\nab"))
        self.assert_504_after(30)

    def test_empty_body(self):
        """A body that turns out to be empty completes the request; others keep their time."""
        self.expect(CHUNKED)
        self.clock.advance(10)
        other = self.server.connect()
        other.receive(request())
        self.clock.advance(10)
        self.send(b"0\r\n\r\n")
        origin, other_origin = self.origins
        self.clock.advance(20)
        self.assertEqual((False, True), (origin.aborted, other_origin.aborted))
        self.clock.advance(10)
        self.assertEqual(504, self.responses("PUT")[-1][0])

    def test_not_expected(self):
        """A 100 that nobody waits for gives an origin no more time."""
        self.send(request(b"/", b"Content-Length: 2", method=b"PUT", body=b"ab"))
        self.clock.advance(20)
        self.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.assert_504_after(10)


class ClientLeavesTests(RelayTestCase):
    """A client that leaves."""

    def test_while_connecting(self):
        """The attempt is canceled."""
        self.instant = False
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.attempts[0].called)
        self.assertEqual((1, 0), (self.pool.statistics.failed_connects, len(self.origins)))

    def test_while_waiting_for_an_answer(self):
        """The connection to the origin is aborted at once."""
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.origin.aborted)
        self.assertEqual(0, self.pool.statistics.in_use)

    def test_in_the_middle_of_its_body(self):
        """So it is when a body breaks off."""
        self.send_slowly(request(b"/", CHUNKED, method=b"POST", body=b"5\r\nab"))
        self.client.receive_end()
        self.assertTrue(self.origin.aborted)
        self.assertFalse(self.origin.sent.endswith(b"0\r\n\r\n"))

    def test_malformed_body(self):
        """And when a body is malformed; the client is told."""
        self.send_slowly(request(b"/", CHUNKED, method=b"POST", body=b"2\r\n"))
        self.send(b"abc\r\n")
        self.assertEqual(400, self.responses("POST", closed=True)[0][0])
        self.assertTrue(self.origin.aborted)

    def test_answered_by_somebody_else(self):
        """An exchange that is answered otherwise lets go of the origin."""
        self.send(request())
        self.server.handler.exchange.fail(403, "no longer allowed")
        self.assertTrue(self.origin.aborted)
        self.assert_refused(403, b"no longer allowed")

    def test_before_the_start(self):
        """For an exchange that has ended already nothing is connected."""
        self.server.handler.answer = None
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        self.forward(self.server.handler.exchange)
        self.assertEqual([], self.attempts)


class OriginFailsTests(RelayTestCase):
    """An origin that does not do what it should."""

    def test_cannot_be_connected(self):
        """The caller's own words describe why there is no connection."""
        self.instant = False
        self.send(request())
        self.attempts[0].errback(ConnectError())
        self.assert_refused(502, b"edge-1 cannot be reached: ConnectError")
        self.assertEqual([None], self.ends)

    def test_pool_is_busy(self):
        """Too many requests are 503."""
        self.pool = ConnectionPool(
            self.clock, self.connect, PoolSettings(max_per_key=1, max_waiting=0)
        )
        self.addCleanup(self.pool.close)
        self.instant = False
        other = self.server.connect()
        other.receive(request())
        self.send(request())
        self.assert_refused(503, b"the kubelet of edge-1: too many requests wait")
        other.break_off(ConnectionLost())

    def test_connection_that_ends_at_once(self):
        """A connection that is of no use any more when the pool has it is 502."""
        self.instant = False
        self.send(request())
        self.attempts[0].errback(ExchangeFailed("the connection was closed at once"))
        self.assert_refused(502, b"the kubelet of edge-1: the connection was closed at once")

    def test_closes_without_an_answer(self):
        """A new connection that is closed is 502, and the request is not sent again."""
        self.send(request())
        self.origin.receive_end()
        self.assert_refused(502, b"the kubelet of edge-1: the connection was closed before")
        self.assertEqual(1, len(self.attempts))

    def test_nonsense(self):
        """An answer that cannot be used is 502."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")
        self.assert_refused(502, b"the kubelet of edge-1: the answer cannot be used")
        self.assertTrue(self.origin.aborted)

    def test_unasked_switch(self):
        """So is a change of protocol that nobody asked for."""
        self.send(request())
        self.answer(SWITCHING)
        self.assert_refused(502, b"unasked")

    def test_never_answers(self):
        """No answer in time is 504."""
        self.send(request())
        self.clock.advance(29)
        self.settle()
        self.assertEqual(b"", self.client.sent)
        self.clock.advance(1)
        self.assert_refused(504, b"the kubelet of edge-1: no answer came within 30 seconds")
        self.assertTrue(self.origin.aborted)

    def test_time_begins_with_the_complete_request(self):
        """The time of an upload does not count, that of the response's body neither."""
        self.send(request(b"/", b"Content-Length: 3", method=b"PUT"))
        for piece in (b"a", b"b", b"c"):
            self.clock.advance(20)
            self.send(piece)
        self.clock.advance(29)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        self.clock.advance(1000)
        self.answer(b"ok")
        self.assertEqual(200, self.responses("PUT")[0][0])

    def test_interim_responses_do_not_count(self):
        """An origin that says again and again that it is busy does not get more time."""
        self.send(request())
        for _ in range(2):
            self.clock.advance(14)
            self.answer(b"HTTP/1.1 102 Processing\r\n\r\n")
        self.clock.advance(2)
        self.assertEqual([102, 102, 504], [a[0] for a in self.responses()])

    def test_endless_interim_responses(self):
        """An origin that sends nothing else is given up; only a few of them are passed on."""
        self.send(request())
        while not self.origin.closed_with:
            self.origin.receive(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
        self.assertEqual([103] * 16 + [502], [a[0] for a in self.responses()])

    def test_patience(self):
        """A patient request has all the time for its answer."""
        self.patient = True
        self.send(request())
        self.clock.advance(10_000)
        self.answer(OK)
        self.assertEqual(200, self.responses()[0][0])

    def test_truncated(self):
        """A response that breaks off is cut for the client, too."""
        for end in (
            lambda: self.origin.receive_end(),
            lambda: self.origin.break_off(ConnectionLost("reset")),
        ):
            self.client = self.server.connect()
            self.send(request())
            self.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            end()
            self.settle()
            self.assertTrue(self.client.aborted)
            self.assertFalse(self.client.sent.endswith(b"0\r\n\r\n"))
            self.assertIsInstance(self.ends[-1], ExchangeFailed)

    def test_answers_early(self):
        """An answer in the middle of an upload passes; both connections are then closed."""
        self.send_slowly(request(b"/", b"Content-Length: 100000", method=b"PUT", body=b"begin"))
        self.answer(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        ((status, fields, body, _),) = self.responses("PUT")
        self.assertEqual((413, b"close", b"no"), (status, fields[b"connection"], body))
        self.assertTrue(self.client.write_ended)
        self.assertFalse(self.client.aborted)
        self.assertTrue(self.origin.aborted)
        self.send(bytes(50_000))
        self.assertTrue(self.origin.sent.endswith(b"\r\n\r\nbegin"))

    def test_answers_while_it_reads(self):
        """An answer that begins in the middle of an upload does not stop the upload."""
        self.send_slowly(request(b"/", b"Content-Length: 4", method=b"PUT", body=b"ab"))
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nAB")
        self.send(b"cd")
        self.answer(b"CD")
        self.assertTrue(self.origin.sent.endswith(b"abcd"))
        self.assertEqual(b"ABCD", self.responses("PUT")[0][2])
        self.assertEqual(1, self.pool.statistics.idle)

    def test_connection_that_is_closed_already(self):
        """A connection that cannot be used when it is there is 502."""

        def acquire(**how):
            connection = ClientConnection(self.clock)
            MemoryConnection(self.clock).open(connection).break_off(ConnectionLost())
            return succeed(connection)

        self.server.handler.answer = lambda exchange: self.relay.forward(
            exchange,
            acquire,
            ForwardedRequest(b"GET", b"/", exchange.head.fields),
            lambda failure: (500, ""),
        )
        self.send(request())
        self.assert_refused(502, b"the origin: the connection is closed")

    def test_connection_that_comes_too_late(self):
        """A connection that is there although it was canceled is closed."""
        connection = ClientConnection(self.clock)
        origin = MemoryConnection(self.clock).open(connection)
        self.server.handler.answer = lambda exchange: self.relay.forward(
            exchange,
            lambda **how: Deferred(lambda canceled: canceled.callback(connection)),
            ForwardedRequest(b"GET", b"/", exchange.head.fields),
            lambda failure: (500, ""),
        )
        self.send(request())
        self.client.break_off(ConnectionLost())
        settle(self.clock, origin)
        self.assertEqual((b"", ConnectionDone), (origin.sent, type(origin.closed_with)))

    def test_defect_in_the_description(self):
        """A failure that its caller cannot describe is a defect, and still answered."""
        self.instant = False
        self.server.handler.answer = lambda exchange: self.relay.forward(
            exchange,
            lambda **how: self.pool.acquire("node", **how),
            ForwardedRequest(b"GET", b"/", []),
            lambda failure: 1 / 0,
        )
        self.send(request())
        self.attempts[0].errback(ConnectError())
        self.assertEqual(500, self.responses()[0][0])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_defect(self):
        """A request that cannot be sent is a defect of the caller, and costs no connection."""
        self.server.handler.answer = lambda exchange: self.relay.forward(
            exchange,
            lambda **how: self.pool.acquire("node", **how),
            ForwardedRequest(b"GET", b"/ bad", []),
            lambda failure: (502, ""),
        )
        self.send(request())
        self.assertEqual(500, self.responses()[0][0])
        self.assertEqual(0, self.pool.statistics.in_use)
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))


class RetryTests(RelayTestCase):
    """When a request is sent a second time."""

    def reuse(self):
        """Have a connection used, and kept."""
        self.send(request(b"/first"))
        self.answer(OK)
        self.assertEqual(1, self.pool.statistics.idle)

    def test_old_connection(self):
        """A safe request on an old connection that turns out to be closed goes to a new one."""
        for end in (
            lambda: self.origin.receive_end(),
            lambda: self.origin.break_off(ConnectionLost("reset")),
        ):
            self.client = self.server.connect()
            self.reuse()
            self.send(request(b"/second"))
            before = len(self.origins)
            end()
            self.settle()
            self.assertEqual(before + 1, len(self.origins))
            self.assertEqual(request(b"/second"), self.origin.sent)
            self.answer(OK)
            self.assertEqual(2, len(self.responses("GET", "GET")))

    def test_once(self):
        """Not a third time."""
        self.reuse()
        self.send(request())
        self.origin.receive_end()
        self.settle()
        self.origin.receive_end()
        self.assertEqual([200, 502], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(2, len(self.origins))

    def test_new_connection_every_time(self):
        """The second attempt is not made on another old connection."""
        other = self.server.connect()
        self.send(request())
        other.receive(request())
        self.settle()
        for origin in self.origins:
            origin.receive(OK)
        self.settle()
        self.assertEqual(2, self.pool.statistics.idle)
        self.send(request())
        self.origin.receive_end()
        self.settle()
        self.assertEqual(3, len(self.origins))

    def test_part_of_an_answer(self):
        """Not after one byte of an answer."""
        self.reuse()
        self.send(request())
        self.answer(b"H")
        self.origin.receive_end()
        self.assertEqual([200, 502], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(1, len(self.origins))

    def test_unsafe_methods(self):
        """Not with a method that does something."""
        for method in (b"POST", b"PUT", b"DELETE", b"PATCH"):
            self.client = self.server.connect()
            self.reuse()
            before = len(self.origins)
            self.send(request(method=method))
            self.origin.receive_end()
            self.assertEqual(502, self.responses("GET", method.decode())[-1][0])
            self.assertEqual(before, len(self.origins))

    def test_with_a_body(self):
        """Not with a body, even of a safe method."""
        self.reuse()
        self.send(request(b"/", b"Content-Length: 2", body=b"ab"))
        self.origin.receive_end()
        self.assertEqual([200, 502], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(1, len(self.origins))

    def test_after_the_deadline(self):
        """Not after the origin has had its time."""
        self.reuse()
        self.send(request())
        self.clock.advance(30)
        self.assertEqual([200, 504], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(1, len(self.origins))

    def test_deadline_of_the_second(self):
        """The second attempt has its own time."""
        self.reuse()
        self.send(request())
        self.clock.advance(20)
        self.origin.receive_end()
        self.settle()
        self.clock.advance(20)
        self.settle()
        self.assertEqual(1, len(self.responses()))
        self.clock.advance(10)
        self.assertEqual([200, 504], [a[0] for a in self.responses("GET", "GET")])

    def test_client_leaves(self):
        """Not for a client that has left."""
        self.reuse()
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        self.settle()
        self.assertEqual(1, len(self.origins))


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
        """With many logs followed a short request is answered at once."""
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
    """What waiting costs."""

    def test_no_timer_for_each_request(self):
        """However many requests there are, the clock has a handful of calls."""
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
        """Without a deadline an origin has all the time."""
        relay = Relay(self.clock)
        self.addCleanup(relay.close)
        self.relay = relay
        self.send(request())
        self.clock.advance(10_000)
        self.answer(OK)
        self.assertEqual(200, self.responses()[0][0])
