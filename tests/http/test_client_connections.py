"""The connection after an exchange: it is kept, fails, or is handed over."""

from __future__ import annotations

import gc
import weakref

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection, Recorder
from tests.http.client_world import HOST, SWITCHING, UPGRADE, ClientTestCase
from tests.http.support import Receiver, SecureConnection, begin
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.head import HeadLimits


class KeepAliveTests(ClientTestCase):
    """When a connection can be reused."""

    def test_reused(self):
        """A connection is reused if the response ended where its framing says."""
        for number in (1, 2):
            receiver = self.ask()
            self.assertFalse(self.connection.reusable)
            self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            self.assertEqual((b"ok", [None]), (receiver.sink.body, receiver.ends))
            self.assertTrue(self.connection.reusable)
            self.assertEqual([self.connection] * number, self.idle)
        self.assertEqual(2, self.connection.requests)

    def test_memory_of_a_long_head(self):
        """A long head is released once it is complete, even if the body is still incomplete."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: " + b"a" * 10_000)
        reader = weakref.ref(self.connection._reader)
        self.answer(b"\r\n\r\n")
        gc.collect()
        self.assertEqual((200, None), (receiver.head.status, reader()))

    def test_memory_of_a_body_receiver(self):
        """The consumer of a body is released while the connection is idle."""
        sink = weakref.ref(self.ask().sink)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        self.answer(b"ok")
        gc.collect()
        self.assertEqual((True, None), (self.connection.reusable, sink()))

    def test_closed(self):
        """A connection is closed if its origin requests that, or speaks HTTP/1.0."""
        for head in (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        ):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            self.answer(head)
            self.assertEqual([None], receiver.ends)
            self.assertIsInstance(self.origin.closed_with, ConnectionDone)
            self.assertEqual(([], [self.connection]), (self.idle, self.lost))

    def test_leftover(self):
        """A connection with data after the response is not reused."""
        receiver = self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n")
        self.assertEqual([None], receiver.ends)
        self.assertFalse(self.connection.reusable)
        self.assertIsNotNone(self.origin.closed_with)
        self.assertEqual([], self.idle)

    def test_data_while_idle(self):
        """A connection on which the origin sends data without a request is closed."""
        self.answer(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        self.assertFalse(self.connection.reusable)
        self.assertTrue(self.origin.aborted)
        self.connect()
        self.ask()
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.answer(b"x")
        self.assertTrue(self.origin.aborted)

    def test_end_while_idle(self):
        """A connection that its origin ends is closed."""
        self.origin.receive_end()
        self.assertFalse(self.connection.reusable)
        self.settle()
        self.assertEqual([self.connection], self.lost)

    def test_released_before_the_end_is_reported(self):
        """A request sent at the end of a response finds the connection free."""
        receiver = self.ask()
        found = []
        receiver.exchange_ended = lambda error: found.append(self.connection.reusable)
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.assertEqual([True], found)

    def test_given_up_when_the_connection_has_another_user(self):
        """Ending a completed exchange does not affect the next one on the connection."""
        first, second = self.ask(), []

        def use(connection):
            second.append(self.ask())
            first.exchange.abort()
            first.exchange.cancel()

        self.connection.on_idle = use
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.connection.on_idle = self.idle.append
        self.assertEqual(([None], []), (first.ends, second[0].ends))
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.assertEqual([None], second[0].ends)

    def test_cancelled(self):
        """Cancelling an exchange aborts the connection, and its receiver is not notified."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        receiver.exchange.cancel()
        self.settle()
        self.assertEqual((True, []), (self.origin.aborted, receiver.ends))
        self.assertEqual([self.connection], self.lost)

    def test_paused_in_the_end(self):
        """A response that ends while it is paused leaves the connection readable."""
        receiver = self.ask(waits=True)
        receiver.response_received = lambda head: (
            receiver.exchange.pauseProducing(),
            receiver.exchange.deliver_body(receiver.sink),
        )
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.assertTrue(self.origin.reading)
        self.assertTrue(self.connection.reusable)

    def test_close(self):
        """Closing an idle connection ends it; an exchange in progress fails."""
        self.connection.close()
        self.connection.close()
        self.settle()
        self.assertIsInstance(self.origin.closed_with, ConnectionDone)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.lost.clear()
        self.connect()
        receiver = self.ask()
        self.connection.close()
        self.assert_failed(receiver, "closed", True)

    def test_origin_that_does_not_end(self):
        """If the peer does not close, the connection is aborted."""
        self.origin.loseConnection = lambda: None
        self.connection.close()
        self.clock.advance(4.9)
        self.assertFalse(self.origin.aborted)
        self.clock.advance(0.1)
        self.assertTrue(self.origin.aborted)


class FailureTests(ClientTestCase):
    """Missing and invalid responses."""

    def test_closed_before_the_answer(self):
        """Without a byte of a response, the origin may not have seen the request."""
        for end, cause in (
            (lambda: self.origin.receive_end(), ConnectionDone),
            (lambda: self.origin.break_off(ConnectionLost("reset")), ConnectionLost),
        ):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            end()
            error = self.assert_failed(receiver, "closed before a response", True)
            self.assertIsInstance(error.__cause__, cause)

    def test_closed_in_the_head(self):
        """With one byte of a response, the origin has seen it."""
        for first in (b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n"):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            self.answer(first)
            self.origin.receive_end()
            self.assert_failed(receiver, "closed before", False)

    def test_second_answer_missing(self):
        """Each exchange tracks separately whether it was answered."""
        self.ask()
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        receiver = self.ask()
        self.origin.receive_end()
        self.assert_failed(receiver, "closed before", True)

    def test_truncated(self):
        """A truncated body is never finished."""
        for head, end in (
            (b"Content-Length: 4", lambda: self.origin.receive_end()),
            (b"Transfer-Encoding: chunked", lambda: self.origin.receive_end()),
            (b"Content-Length: 4", lambda: self.origin.break_off(ConnectionLost("reset"))),
            (b"X: until close", lambda: self.origin.break_off(ConnectionLost("reset"))),
        ):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            self.answer(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n3\r\n")
            end()
            self.assertFalse(receiver.sink.finished)
            self.assert_failed(receiver, "incomplete", False)

    def test_answers_that_cannot_be_used(self):
        """Ambiguous and malformed responses fail, and close the connection."""
        for data in (
            b"nonsense\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n",
        ):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            self.answer(data)
            self.assert_failed(receiver, "the response is invalid", False)

    def test_limits(self):
        """The limits of heads are applied."""
        self.connect(limits=HeadLimits(max_bytes=100))
        receiver = self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100)
        self.assertIn("longer than 100 bytes", str(receiver.ends[0]))

    def test_abort(self):
        """An aborted exchange fails, and nothing follows."""
        receiver = self.ask()
        receiver.exchange.abort()
        self.assert_failed(receiver, "aborted", True)
        receiver.exchange.abort()
        self.assertEqual(1, len(receiver.ends))

    def test_abort_in_the_middle_of_a_piece(self):
        """The exchange can be aborted within the delivery of the body."""
        receiver = self.ask()
        receiver.sink.write = lambda data: receiver.exchange.abort()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        self.assert_failed(receiver, "aborted", False)
        self.assertFalse(receiver.sink.finished)


class SwitchTests(ClientTestCase):
    """Handing the connection over."""

    def request_and_switch(self, answer=SWITCHING, **arguments):
        """Request an upgrade, and switch when it is granted."""
        protocol = Recorder()
        receiver = Receiver(waits=True)
        receiver.response_received = lambda head: receiver.exchange.switch(protocol)
        receiver.exchange = begin(
            self.connection,
            b"GET",
            b"/",
            [HOST, *(UPGRADE if arguments else ())],
            receiver,
            **arguments,
        )
        self.answer(answer)
        return receiver, protocol

    def test_switch(self):
        """After a 101 the protocol gets the data, beginning with that after the head."""
        receiver, protocol = self.request_and_switch(SWITCHING + b"early", upgrade=True)
        self.assertRaises(RuntimeError, receiver.exchange.switch, Recorder())
        self.answer(b" and late")
        self.assertEqual(b"early and late", protocol.received)
        self.assertEqual([(self.connection, True)], self.responses)
        protocol.transport.write(b"raw")
        self.settle()
        self.assertTrue(
            self.origin.sent.endswith(b"Connection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\nraw")
        )
        self.assertEqual([], receiver.ends)
        self.origin.receive_end()
        self.assertEqual(1, protocol.read_ended)
        self.origin.break_off(ConnectionDone())
        self.assertEqual(([None], 1), (receiver.ends, len(protocol.ended_with)))
        self.assertEqual(([], [self.connection]), (self.idle, self.lost))

    def test_connection_breaks(self):
        """The exchange fails if the connection that was handed over breaks."""
        receiver, protocol = self.request_and_switch(upgrade=True)
        self.origin.break_off(ConnectionLost("reset"))
        self.assertEqual(1, len(protocol.ended_with))
        self.assert_failed(receiver, "broke", False)

    def test_abort(self):
        """An exchange whose connection was handed over can still be aborted."""
        receiver, protocol = self.request_and_switch(upgrade=True)
        receiver.exchange.abort()
        self.assertEqual(1, len(protocol.ended_with))
        self.assert_failed(receiver, "aborted", False)

    def test_connect(self):
        """CONNECT cannot be sent."""
        self.assertRaises(ValueError, self.ask, b"CONNECT")
        self.assertEqual(b"", self.origin.sent)

    def test_unasked(self):
        """A 101 without a requested upgrade is an error."""
        receiver = self.ask()
        self.answer(SWITCHING)
        self.assert_failed(receiver, "no upgrade was requested", False)
        self.assertEqual([], self.responses)

    def test_request_incomplete(self):
        """A 101 before the request is complete is an error, too."""
        receiver = self.ask(b"POST", *UPGRADE, has_body=True, upgrade=True)
        self.answer(SWITCHING)
        self.assert_failed(receiver, "no upgrade was requested", False)

    def test_not_taken(self):
        """A 101 without a switch aborts the exchange."""
        receiver = self.ask(b"GET", *UPGRADE, waits=True, upgrade=True)
        self.answer(SWITCHING)
        self.assert_failed(receiver, "aborted", False)

    def test_refused(self):
        """A refusal has a body, and the connection is reused."""
        receiver = self.ask(b"GET", *UPGRADE, upgrade=True)
        self.answer(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nn")
        self.answer(b"o")
        self.assertEqual((b"no", [None]), (receiver.sink.body, receiver.ends))
        self.assertEqual([(self.connection, False)], self.responses)
        self.assertTrue(self.connection.reusable)
        with self.assertRaises(RuntimeError):
            self.ask(waits=True).exchange.switch(Recorder())
        receiver.exchange.switch(Recorder())


class ReadyTests(SynchronousTestCase):
    """When requests can be sent."""

    def setUp(self):
        """Create a connection that is not connected yet."""
        self.clock = MemoryReactorClock()
        self.connection = ClientConnection(self.clock)

    def test_plain(self):
        """A plain connection is ready once it is connected."""
        early = self.connection.when_ready()
        self.assertNoResult(early)
        MemoryConnection(self.clock).open(self.connection)
        self.assertIs(self.connection, self.successResultOf(early))
        self.assertIs(self.connection, self.successResultOf(self.connection.when_ready()))

    def test_secure(self):
        """A TLS connection is ready after the handshake."""
        SecureConnection(self.clock).open(self.connection)
        ready = self.connection.when_ready()
        self.assertNoResult(ready)
        self.connection.handshakeCompleted()
        self.assertIs(self.connection, self.successResultOf(ready))

    def test_lost(self):
        """If the connection is lost before it is ready, waiting for it fails with the reason."""
        transport = SecureConnection(self.clock).open(self.connection)
        ready = self.connection.when_ready()
        transport.break_off(ConnectionLost("bad certificate"))
        self.failureResultOf(ready, ConnectionLost)
        self.failureResultOf(self.connection.when_ready(), ConnectionLost)
