"""Forwarding: request bodies, slow ones, and those with an expectation."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost

from tests.http.relaying import CHUNKED, OK, RelayTestCase
from tests.http.support import request, settle
from yurttunnel.http.pool import PoolSettings
from yurttunnel.http.relay import (
    BODY_START,
    BODY_START_TIMEOUT,
    Relay,
)


class BackPressureTests(RelayTestCase):
    """A side that does not keep up pauses the other, and buffers are limited."""

    PIECE = 16 * 1024

    def fill(self, source):
        """Simulate data while ``source`` is read; return how much was accepted."""
        total = 0
        while source.reading and total < 10_000_000:
            source.receive(bytes(self.PIECE))
            total += self.PIECE
        return total

    def test_stalled_client(self):
        """A client that does not read pauses the origin."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        total = self.fill(self.origin)
        self.assertLessEqual(total, 64 * 1024 + 2 * self.PIECE)
        self.settle()
        self.assertTrue(self.origin.reading)
        self.assertEqual(total, len(self.client.sent.partition(b"\r\n\r\n")[2]))

    def test_stalled_origin(self):
        """An origin that does not read pauses the client."""
        self.send(request(b"/", b"Content-Length: 10000000", method=b"PUT"))
        total = self.fill(self.client)
        self.assertLessEqual(total, 64 * 1024 + 2 * self.PIECE)
        self.settle()
        self.assertTrue(self.client.reading)
        self.assertEqual(total, len(self.origin.sent.partition(b"\r\n\r\n")[2]))

    def test_before_there_is_a_connection(self):
        """While connecting to the origin, one read of the body is held."""
        self.instant = False
        self.send(request(b"/", b"Content-Length: 10000000", method=b"PUT"))
        self.assertEqual(self.PIECE, self.fill(self.client))
        self.succeed()
        self.settle()
        self.assertTrue(self.client.reading)
        self.assertEqual(self.PIECE, len(self.origin.sent.partition(b"\r\n\r\n")[2]))

    def test_client_leaves_while_stalled(self):
        """A client that disconnects while it is stalled ends the connection to the origin."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        self.fill(self.origin)
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.origin.aborted)

    def test_origin_closes_while_stalled(self):
        """Data from the origin still reaches a client that was stalled."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\n\r\n")
        total = self.fill(self.origin)
        self.origin.break_off(ConnectionDone())
        self.assertEqual(total, len(self.responses()[0][2]))


class StalledUploadTests(RelayTestCase):
    """An origin that does not read a request body."""

    def stall(self):
        """Send more from the client than the origin reads."""
        self.client.receive(request(b"/", b"Content-Length: 10000000", method=b"PUT"))
        self.fill()

    def fill(self):
        """Send from the client while it is read."""
        while self.client.reading:
            self.client.receive(bytes(16 * 1024))

    def assert_aborted(self, seconds=30):
        """Check that both sides are aborted after the timeout, not before."""
        self.clock.advance(seconds - 1)
        self.assertFalse(self.origin.aborted)
        self.clock.advance(1)
        self.assertTrue(self.origin.aborted)
        self.assertEqual(0, self.pool.statistics.in_use)

    def test_never_reads_it(self):
        """The exchange is aborted after the response timeout, and the client gets an error."""
        self.stall()
        self.assert_aborted()
        settle(self.clock, self.client)
        ((status, _, body, _),) = self.responses("PUT", closed=True)
        self.assertEqual(504, status)
        self.assertIn(b"edge-1: no data of the request body was accepted for 30 seconds", body)
        self.assertTrue(self.client.write_ended)

    def test_linger(self):
        """``patient`` applies to the response, not to the request."""
        self.long_running = True
        self.stall()
        self.assert_aborted()

    def test_without_a_timeout(self):
        """Without a response timeout, the timeout for the body is a minute."""
        self.relay = Relay(self.clock)
        self.addCleanup(self.relay.close)
        self.stall()
        self.assert_aborted(60)

    def test_slow_origin(self):
        """An origin that reads some data repeatedly has unlimited time."""
        self.stall()
        for _ in range(10):
            self.clock.advance(29)
            self.origin.turn()
            self.assertTrue(self.client.reading)
            self.fill()
        self.assertFalse(self.origin.aborted)
        self.assert_aborted()

    def test_read_in_the_end(self):
        """Once the body has been read, the response timeout starts."""
        self.send(request(b"/", b"Content-Length: 100000", method=b"PUT"))
        self.client.receive(bytes(100_000))
        self.clock.advance(29)
        self.settle()
        self.clock.advance(0.5)
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])
        self.clock.advance(100)
        self.assertEqual([None], self.ends)

    def test_linger_after_the_body(self):
        """For a body that was read completely there is no timeout with ``patient``."""
        self.long_running = True
        self.send(request(b"/", b"Content-Length: 100000", method=b"PUT"))
        self.client.receive(bytes(100_000))
        self.clock.advance(1000)
        self.settle()
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])

    def test_client_that_has_left(self):
        """A client whose end is not noticed while paused is released."""
        self.stall()
        self.client.receive_end()
        self.assertFalse(self.origin.aborted)
        self.assert_aborted()
        settle(self.clock, self.client)
        self.clock.advance(5)
        settle(self.clock, self.client)
        self.assertEqual(set(), self.server.factory.connections)
        self.assertEqual(1, len(self.ends))

    def test_client_that_is_seen_to_leave(self):
        """A client that is seen to disconnect leaves no timeout behind."""
        self.stall()
        self.client.break_off(ConnectionLost("reset"))
        self.assertTrue(self.origin.aborted)
        self.assertEqual(0, len(self.relay.uploads))

    def test_after_the_answer_has_begun(self):
        """After the response has begun the same timeout aborts both sides."""
        self.stall()
        self.origin.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.assert_aborted()
        self.assertTrue(self.client.aborted)

    def test_answer_ends_it(self):
        """A complete response cancels the timeout."""
        self.stall()
        self.origin.receive(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        self.assertEqual(0, len(self.relay.uploads))
        self.assertEqual(413, self.responses("PUT")[0][0])


class BodyBufferTests(RelayTestCase):
    """A connection to the origin is acquired when the body is complete, or takes too long."""

    pool_settings = PoolSettings(max_per_key=2, max_uploads_per_key=2)
    caller = "somebody"

    def begin(self, *fields, body=b"", target=b"/"):
        """Start a request with a body from a new client."""
        self.client = self.server.connect()
        self.send(request(target, *fields, method=b"PUT", body=body))

    def test_a_small_body_holds_nothing_before_it_is_complete(self):
        """A small body acquires a connection once it is complete, like any other request."""
        self.begin(CHUNKED, body=b"2\r\nab\r\n")
        self.send(b"1\r\nc\r\n0\r\n")
        self.assertEqual([], self.attempts)
        self.send(b"X-Checksum: v\r\n\r\n")
        self.assertIn(b"\r\n\r\n3\r\nabc\r\n0\r\n", self.origin.sent)
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])

    def test_a_connection_that_is_kept(self):
        """A kept connection also serves requests with a body: complete, slow, or with an
        expectation.
        """
        self.begin(b"Content-Length: 2", body=b"ab")
        self.answer(OK)
        self.begin(b"Content-Length: 2", body=b"ab")
        self.answer(OK)
        self.begin(b"Content-Length: 2", body=b"a")
        self.clock.advance(BODY_START_TIMEOUT)
        self.send(b"b")
        self.answer(OK)
        self.begin(b"Content-Length: 2", b"Expect: 100-continue")
        self.send(b"ab")
        self.answer(OK)
        self.assertEqual(200, self.responses("PUT")[0][0])
        self.assertEqual(1, len(self.origins))

    def test_a_long_body_is_not_kept(self):
        """The buffered start is limited; more is read once there is a connection."""
        self.instant = False
        self.begin(b"Content-Length: 1000000", body=bytes(BODY_START - 1))
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
        """A body that ends while connecting is sent completely, and once."""
        self.instant = False
        self.begin(b"Content-Length: 3", body=b"a")
        self.clock.advance(BODY_START_TIMEOUT)
        self.send(b"bc")
        self.succeed()
        self.settle()
        self.assertTrue(self.origin.sent.endswith(b"\r\n\r\nabc"))
        self.assertEqual(1, len(self.attempts))

    def test_unfinished_bodies_do_not_block_others(self):
        """Incomplete bodies use up at most their caller's share; other requests are served."""
        for fields in (
            [b"Content-Length: 9"],
            [CHUNKED],
            [b"Content-Length: 9", b"Expect: 100-continue"],
        ):
            for _ in range(10):
                self.begin(*fields)
                self.begin(*fields, body=b"1")
        self.clock.advance(BODY_START_TIMEOUT)
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
        """No connection is acquired if the client disconnects, or its body is malformed."""
        self.begin(b"Content-Length: 3", body=b"a")
        self.client.receive_end()
        self.begin(CHUNKED, body=b"xx\r\n")
        self.assertEqual(400, self.responses("PUT", closed=True)[0][0])
        self.clock.advance(2 * BODY_START_TIMEOUT)
        self.assertEqual([], self.attempts)

    def test_linger_is_for_complete_requests(self):
        """With ``patient``, a client that waits for a 100 still gets a timeout."""
        self.long_running = True
        self.begin(b"Content-Length: 3", b"Expect: 100-continue")
        self.clock.advance(30)
        self.assertEqual(504, self.responses("PUT")[-1][0])
        self.assertTrue(self.origin.aborted)


class ExpectationTests(RelayTestCase):
    """A client that waits for ``100 Continue`` before it sends its body."""

    def expect(self, framing=b"Content-Length: 2"):
        """Start a request from a new client."""
        self.client = self.server.connect()
        self.send(request(b"/", framing, b"Expect: 100-continue", method=b"PUT"))

    def assert_504_after(self, seconds):
        """Check that nothing happens before ``seconds``, and then the origin is aborted."""
        self.clock.advance(seconds - 1)
        self.settle()
        self.assertFalse(self.origin.aborted)
        self.clock.advance(1)
        self.assertEqual(504, self.responses("PUT")[-1][0])
        self.assertTrue(self.origin.aborted)

    def test_no_hundred_continue(self):
        """Without a 100 the client gets an error after the response timeout."""
        for framing in (b"Content-Length: 2", CHUNKED):
            self.expect(framing)
            self.assert_504_after(30)

    def test_hundred_continue(self):
        """After a 100 the upload has unlimited time."""
        self.expect()
        self.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
        for piece in (b"a", b"b"):
            self.clock.advance(31)
            self.send(piece)
        self.assert_504_after(30)

    def test_goes_on_by_itself(self):
        """The upload of a client that does not wait for the 100 has unlimited time, too."""
        self.expect()
        for piece in (b"a", b"b"):
            self.clock.advance(20)
            self.send(piece)
        self.assertTrue(self.origin.sent.endswith(b"\r\n\r\nab"))
        self.assert_504_after(30)

    def test_empty_body(self):
        """An empty body completes the request; timeouts of others are not affected."""
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
        """A 100 that no client waits for does not extend the timeout."""
        self.send(request(b"/", b"Content-Length: 2", method=b"PUT", body=b"ab"))
        self.clock.advance(20)
        self.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.assert_504_after(10)
