"""The side that asks."""

from __future__ import annotations

import gc
import weakref

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.fakes import MemoryConnection, Recorder
from tests.http.support import Receiver, SecureConnection, begin, settle
from tests.tunnel.memory import Producer
from yurttunnel.http.client import ClientConnection, write_request
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import ExchangeFailed, IClientExchange

HOST = (b"Host", b"node")
UPGRADE = ((b"Connection", b"Upgrade"), (b"Upgrade", b"spdy/3.1"))
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n"


class ClientTestCase(SynchronousTestCase):
    """A connection to an origin that the test plays."""

    kind = MemoryConnection

    def setUp(self):
        """Connect."""
        self.clock = MemoryReactorClock()
        self.answers = []
        self.idle = []
        self.lost = []
        self.connect()

    def connect(self, **arguments):
        """Make a connection."""
        self.connection = ClientConnection(self.clock, **arguments)
        self.connection.on_answer = lambda *answer: self.answers.append(answer)
        self.connection.on_idle = self.idle.append
        self.connection.on_lost = self.lost.append
        self.origin = self.kind(self.clock).open(self.connection)

    def ask(self, method=b"GET", *fields, waits=False, **arguments):
        """Make a request; give its receiver."""
        receiver = Receiver(waits)
        receiver.exchange = begin(
            self.connection, method, b"/", [HOST, *fields], receiver, **arguments
        )
        self.settle()
        return receiver

    def settle(self):
        """Let everything be sent."""
        settle(self.clock, self.origin)

    def answer(self, data):
        """Have the origin send."""
        self.origin.receive(data)
        self.settle()

    def assert_failed(self, receiver, text, unanswered):
        """Check that an exchange has failed, once, and the connection with it."""
        (error,) = receiver.ends
        self.assertIsInstance(error, ExchangeFailed)
        self.assertIn(text, str(error))
        self.assertEqual(unanswered, error.unanswered)
        self.assertFalse(self.connection.reusable)
        self.settle()
        self.assertIsNotNone(self.origin.closed_with)
        self.assertEqual([self.connection], self.lost)
        return error


class RequestTests(ClientTestCase):
    """What is sent."""

    def test_interfaces(self):
        """Exchanges and connections provide what they say."""
        receiver = self.ask()
        self.assertTrue(verifyObject(IClientExchange, receiver.exchange))
        self.assertTrue(verifyObject(IHalfCloseableProtocol, self.connection))
        self.assertTrue(verifyObject(IHandshakeListener, self.connection))

    def test_without_body(self):
        """A request without a body is its head; finishing it adds nothing."""
        receiver = self.ask()
        receiver.exchange.finish()
        self.settle()
        self.assertEqual(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n", self.origin.sent)

    def test_empty_post(self):
        """A method that usually has a body says that there is none."""
        self.ask(b"POST")
        self.assertTrue(self.origin.sent.endswith(b"\r\nContent-Length: 0\r\n\r\n"))

    def test_length(self):
        """A body of known length is sent as it is."""
        receiver = self.ask(b"PUT", (b"Content-Length", b"4"), has_body=True)
        receiver.exchange.write(b"ab")
        receiver.exchange.write(b"cd")
        receiver.exchange.finish([(b"X", b"y")])
        self.settle()
        self.assertTrue(self.origin.sent.endswith(b"Content-Length: 4\r\n\r\nabcd"))

    def test_chunks(self):
        """A body of unknown length is sent in chunks, with its trailers."""
        receiver = self.ask(b"POST", has_body=True)
        receiver.exchange.write(b"abc")
        receiver.exchange.write(b"")
        receiver.exchange.finish([(b"ETag", b"y")])
        self.settle()
        self.assertTrue(
            self.origin.sent.endswith(
                b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nETag: y\r\n\r\n"
            )
        )

    def test_wrong_length(self):
        """A body with more or less than its length is a defect, and fails."""
        for body in (b"123", b"1"):
            self.lost.clear()
            self.connect()
            receiver = self.ask(b"PUT", (b"Content-Length", b"2"), has_body=True)
            receiver.exchange.write(body)
            receiver.exchange.finish()
            self.assert_failed(receiver, "aborted", True)
        self.flushLoggedErrors()

    def test_unsafe_requests(self):
        """What would be read as something else is refused, and leaves the connection usable."""
        for method, target, fields in (
            (b"GET", b"/ HTTP/1.1\r\nX: ", [HOST]),
            (b"G T", b"/", [HOST]),
            (b"GET", b"/", [(b"A", b"b\r\nC: d")]),
            (b"GET", b"/", [(b"Transfer-Encoding", b"chunked")]),
            (b"GET", b"/", [(b"Connection", b"close")]),
            (b"GET", b"/", [(b"Content-Length", b"1"), (b"Content-Length", b"1")]),
        ):
            with self.assertRaises(ValueError):
                begin(self.connection, method, target, fields, Receiver())
        self.assertTrue(self.connection.reusable)
        self.settle()
        self.assertEqual(b"", self.origin.sent)

    def test_one_at_a_time(self):
        """A connection that is in use, or closed, takes no request."""
        self.ask()
        for _ in range(2):
            with self.assertRaises(ExchangeFailed) as caught:
                self.ask()
            self.assertTrue(caught.exception.unanswered)
            self.connection.close()

    def test_back_pressure(self):
        """A producer of the body is paused while the origin does not keep up."""
        receiver = self.ask(b"POST", has_body=True)
        producer = Producer()
        receiver.exchange.registerProducer(producer, True)
        receiver.exchange.write(bytes(100_000))
        self.assertEqual(["pause"], producer.told)
        self.settle()
        self.assertEqual(["pause", "resume"], producer.told)
        receiver.exchange.unregisterProducer()
        with self.assertRaises(ValueError):
            receiver.exchange.registerProducer(producer, False)


class ResponseTests(ClientTestCase):
    """What comes back."""

    def assert_complete(self, receiver, body=b"", trailers=()):
        """Check that a response has come whole."""
        self.assertEqual([None], receiver.ends)
        self.assertEqual((body, list(trailers)), (receiver.sink.body, receiver.sink.trailers))

    def test_length(self):
        """A body of known length."""
        receiver = self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX: y\r\n\r\nab")
        self.assertEqual([], receiver.ends)
        self.assertTrue(receiver.exchange.has_body)
        self.answer(b"cd")
        self.assert_complete(receiver, b"abcd")
        self.assertEqual((200, [b"y"]), (receiver.head.status, receiver.head.values(b"x")))

    def test_chunks(self):
        """A body in chunks with trailers."""
        receiver = self.ask()
        self.answer(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n"
        )
        self.assert_complete(receiver, b"a", [(b"X", b"y")])

    def test_until_close(self):
        """A body without framing ends with the connection."""
        for end in (
            lambda: self.origin.receive_end(),
            lambda: self.origin.break_off(ConnectionDone()),
        ):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            self.answer(b"HTTP/1.1 200 OK\r\n\r\nabc")
            self.assertEqual([], receiver.ends)
            end()
            self.assert_complete(receiver, b"abc")
            self.assertFalse(self.connection.reusable)
            self.settle()
            self.assertEqual(([], [self.connection]), (self.idle, self.lost))

    def test_without_body(self):
        """Answers to HEAD, 204 and 304 have no body whatever they say."""
        for method, head in (
            (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
            (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
            (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ):
            receiver = self.ask(method)
            self.answer(head)
            self.assert_complete(receiver)
            self.assertFalse(receiver.exchange.has_body)
            self.assertTrue(self.connection.reusable)

    def test_take_whole(self):
        """A body that has come with the head is taken at once: the connection is free again."""
        for length, data in ((b"2", b"ab"), (b"0", b"")):
            receiver = self.ask(waits=True)
            self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n" + data)
            self.assertFalse(self.connection.reusable)
            self.assertEqual(data, receiver.exchange.take_whole())
            self.assertTrue(self.connection.reusable)
            self.assertEqual([self.connection], self.idle)
            self.idle.clear()
            receiver.exchange.deliver_body(receiver.sink)
            self.assertIsNone(receiver.exchange.take_whole())
            self.assertEqual(([], None), (receiver.ends, receiver.sink.trailers))

    def test_take_whole_with_more_behind_it(self):
        """A connection on which more comes than was asked for is not used again."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc")
        self.assertEqual(b"a", receiver.exchange.take_whole())
        self.settle()
        self.assertEqual(([], [self.connection]), (self.idle, self.lost))

    def test_nothing_whole_to_take(self):
        """What has not come to its end, or whose end is told otherwise, is to be delivered."""
        for fields, data, rest in (
            (b"Content-Length: 3\r\n", b"ab", b"c"),
            (b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n", b""),
        ):
            receiver = self.ask(waits=True)
            self.assertIsNone(receiver.exchange.take_whole())
            self.answer(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + data)
            self.assertIsNone(receiver.exchange.take_whole())
            receiver.exchange.deliver_body(receiver.sink)
            self.assertIsNone(receiver.exchange.take_whole())
            self.answer(rest)
            self.assert_complete(receiver, b"abc")

    def test_interim_responses(self):
        """Interim responses are told one by one, before the final one."""
        receiver = self.ask()
        self.answer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")
        self.assertEqual([100, 103], [head.status for head in receiver.informational])
        self.assertIsNone(receiver.head)
        self.answer(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
        self.assertEqual(3, len(receiver.informational))
        self.assert_complete(receiver)

    def test_many_interim_responses(self):
        """There are 16 interim responses to each request at most."""
        interim = b"HTTP/1.1 103 Early Hints\r\n\r\n"
        for _ in range(2):
            receiver = self.ask()
            self.answer(interim * 16)
            self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
            self.assertEqual(16, len(receiver.informational))
            self.assert_complete(receiver)
        receiver = self.ask()
        self.answer(interim * 1000)
        self.assertEqual(16, len(receiver.informational))
        self.assertIn("too many interim responses", str(receiver.ends[0]))
        self.assertTrue(self.origin.aborted)

    def test_large_interim_responses(self):
        """They have 64 KiB at most, however they are cut, and the final head does not count."""
        self.connect(limits=HeadLimits(max_bytes=100_000))
        receiver = self.ask()
        for _ in range(3):
            self.answer(b"HTTP/1.1 103 Early Hints\r\nX: " + b"a" * 20_000)
            self.answer(b"\r\n\r\n")
        self.answer(b"HTTP/1.1 204 No Content\r\nX: " + b"a" * 20_000 + b"\r\n\r\n")
        self.assert_complete(receiver)
        receiver = self.ask()
        for _ in range(4):
            self.answer(b"HTTP/1.1 103 Early Hints\r\nX: " + b"a" * 20_000 + b"\r\n\r\n")
        self.assertEqual(3, len(receiver.informational))
        self.assertIn("too many interim responses", str(receiver.ends[0]))

    def test_a_field_that_is_added_to_a_request(self):
        """It comes behind the others; none that frames the request, nor one with a line end."""
        written = write_request(b"GET", b"/", [(b"Host", b"a")])
        self.assertEqual(
            b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n", written.with_field(b"X-A", b"1").head
        )
        for name, value in (
            (b"content-Length", b"1"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Connection", b"close"),
            (b"X-A", b"1\r\nX-B: 2"),
            (b"X A", b"1"),
        ):
            self.assertRaises(ValueError, written.with_field, name, value)

    def test_on_answer(self):
        """Whoever keeps the connection is told of a final head, unless the answer is over."""
        self.ask()
        self.answer(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Len")
        self.assertEqual([], self.answers)
        self.answer(b"gth: 1\r\n\r\n")
        self.assertEqual([(self.connection, False)], self.answers)
        self.answer(b"a")
        self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
        self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
        self.assertEqual([(self.connection, False)] * 2, self.answers)

    def test_ended_by_who_is_told_of_the_answer(self):
        """A connection that is to be handed over is not, if that is what it is closed by."""
        receiver = self.ask(b"GET", *UPGRADE, upgrade=True)
        self.connection.on_answer = lambda connection, switches: connection.close()
        self.answer(SWITCHING)
        self.assertIsNone(receiver.head)
        self.assert_failed(receiver, "the connection was closed", unanswered=False)

    def test_paused_until_wanted(self):
        """Nothing but one read is taken of a response whose body nobody wants yet."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab")
        self.assertFalse(self.origin.reading)
        self.answer(b"cd")
        receiver.exchange.deliver_body(receiver.sink)
        self.assertEqual(b"ab", receiver.sink.body)
        self.settle()
        self.assertEqual(b"abcd", receiver.sink.body)
        with self.assertRaises(RuntimeError):
            receiver.exchange.deliver_body(receiver.sink)

    def test_back_pressure(self):
        """A paused response is not read on."""
        receiver = self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab")
        receiver.exchange.pauseProducing()
        self.answer(b"cd")
        self.assertEqual(b"ab", receiver.sink.body)
        receiver.exchange.resumeProducing()
        self.settle()
        receiver.exchange.stopProducing()
        self.answer(b"ef")
        self.assertEqual(b"abcd", receiver.sink.body)

    def test_ended_while_unwanted(self):
        """A response that has come whole, with the end, can still be taken."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\n\r\nabc")
        self.origin.break_off(ConnectionDone())
        self.assertEqual([], receiver.ends)
        receiver.exchange.deliver_body(receiver.sink)
        self.assert_complete(receiver, b"abc")

    def test_broken_while_unwanted(self):
        """One that has not fails when it is taken."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc")
        self.origin.break_off(ConnectionDone())
        receiver.exchange.deliver_body(receiver.sink)
        self.assertEqual(b"abc", receiver.sink.body)
        self.assertFalse(receiver.sink.finished)
        self.assert_failed(receiver, "broke off", False)

    def test_early_answer(self):
        """An answer before the request is complete is an answer, and ends the connection."""
        receiver = self.ask(b"POST", has_body=True)
        self.answer(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        self.assert_complete(receiver, b"no")
        self.assertFalse(self.connection.reusable)
        self.assertTrue(self.origin.aborted)
        self.assertEqual([], self.idle)
        receiver.exchange.write(b"late")
        receiver.exchange.finish()


class KeepAliveTests(ClientTestCase):
    """Whether a connection can be used again."""

    def test_reused(self):
        """A connection whose response ended where it should is used again."""
        for number in (1, 2):
            receiver = self.ask()
            self.assertFalse(self.connection.reusable)
            self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            self.assertEqual((b"ok", [None]), (receiver.sink.body, receiver.ends))
            self.assertTrue(self.connection.reusable)
            self.assertEqual([self.connection] * number, self.idle)
        self.assertEqual(2, self.connection.requests)

    def test_what_is_kept_of_a_long_head(self):
        """Nothing, from when it has come on, however long the answer goes on."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: " + b"a" * 10_000)
        reader = weakref.ref(self.connection._reader)
        self.answer(b"\r\n\r\n")
        gc.collect()
        self.assertEqual((200, None), (receiver.head.status, reader()))

    def test_what_is_kept_of_who_takes_a_body(self):
        """Nothing, while the connection waits for the next one."""
        sink = weakref.ref(self.ask().sink)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        self.answer(b"ok")
        gc.collect()
        self.assertEqual((True, None), (self.connection.reusable, sink()))

    def test_closed(self):
        """One whose origin wants it closed, or speaks HTTP/1.0, is closed."""
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
        """One on which something follows the response is not used again."""
        receiver = self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n")
        self.assertEqual([None], receiver.ends)
        self.assertFalse(self.connection.reusable)
        self.assertIsNotNone(self.origin.closed_with)
        self.assertEqual([], self.idle)

    def test_data_while_idle(self):
        """One on which the origin speaks unasked is closed, before and after a request."""
        self.answer(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        self.assertFalse(self.connection.reusable)
        self.assertTrue(self.origin.aborted)
        self.connect()
        self.ask()
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.answer(b"x")
        self.assertTrue(self.origin.aborted)

    def test_end_while_idle(self):
        """One that its origin ends is closed."""
        self.origin.receive_end()
        self.assertFalse(self.connection.reusable)
        self.settle()
        self.assertEqual([self.connection], self.lost)

    def test_released_before_the_end_is_told(self):
        """Who asks again because of the end of a response finds the connection free."""
        receiver = self.ask()
        found = []
        receiver.exchange_ended = lambda error: found.append(self.connection.reusable)
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.assertEqual([True], found)

    def test_given_up_when_the_connection_has_another_user(self):
        """Who gives up a response that is complete does not take the next one's connection."""
        first, second = self.ask(), []

        def use(connection):
            second.append(self.ask())
            first.exchange.abort()

        self.connection.on_idle = use
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.connection.on_idle = self.idle.append
        self.assertEqual(([None], []), (first.ends, second[0].ends))
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        self.assertEqual([None], second[0].ends)

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
        """Closing an idle connection ends it; a running exchange fails."""
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
        """A connection whose end is not answered is aborted."""
        self.origin.loseConnection = lambda: None
        self.connection.close()
        self.clock.advance(4.9)
        self.assertFalse(self.origin.aborted)
        self.clock.advance(0.1)
        self.assertTrue(self.origin.aborted)


class FailureTests(ClientTestCase):
    """Answers that do not come, or not as they should."""

    def test_closed_before_the_answer(self):
        """No byte of an answer: the origin may not have seen the request."""
        for end, cause in (
            (lambda: self.origin.receive_end(), ConnectionDone),
            (lambda: self.origin.break_off(ConnectionLost("reset")), ConnectionLost),
        ):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            end()
            error = self.assert_failed(receiver, "closed before an answer", True)
            self.assertIsInstance(error.__cause__, cause)

    def test_closed_in_the_head(self):
        """One byte of an answer, and it has been seen."""
        for first in (b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n"):
            self.lost.clear()
            self.connect()
            receiver = self.ask()
            self.answer(first)
            self.origin.receive_end()
            self.assert_failed(receiver, "closed before", False)

    def test_second_answer_missing(self):
        """Each exchange has its own account of what was answered."""
        self.ask()
        self.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
        receiver = self.ask()
        self.origin.receive_end()
        self.assert_failed(receiver, "closed before", True)

    def test_truncated(self):
        """A body that breaks off is never finished."""
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
        """Ambiguous and malformed answers fail, and the connection with them."""
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
            self.assert_failed(receiver, "cannot be used", False)

    def test_limits(self):
        """The limits of heads are given."""
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
        """Aborting from within the delivery of the body works."""
        receiver = self.ask()
        receiver.sink.write = lambda data: receiver.exchange.abort()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        self.assert_failed(receiver, "aborted", False)
        self.assertFalse(receiver.sink.finished)


class SwitchTests(ClientTestCase):
    """Handing the connection over."""

    def ask_and_switch(self, answer=SWITCHING, **arguments):
        """Ask for an upgrade and take it when it is granted."""
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
        """After a 101 the bytes are the protocol's, beginning with those behind the head."""
        receiver, protocol = self.ask_and_switch(SWITCHING + b"early", upgrade=True)
        self.assertRaises(RuntimeError, receiver.exchange.switch, Recorder())
        self.answer(b" and late")
        self.assertEqual(b"early and late", protocol.received)
        self.assertEqual([(self.connection, True)], self.answers)
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
        """The exchange fails when the connection that was handed over breaks."""
        receiver, protocol = self.ask_and_switch(upgrade=True)
        self.origin.break_off(ConnectionLost("reset"))
        self.assertEqual(1, len(protocol.ended_with))
        self.assert_failed(receiver, "broke", False)

    def test_abort(self):
        """The exchange can still be aborted."""
        receiver, protocol = self.ask_and_switch(upgrade=True)
        receiver.exchange.abort()
        self.assertEqual(1, len(protocol.ended_with))
        self.assert_failed(receiver, "aborted", False)

    def test_connect(self):
        """Nobody asks by CONNECT."""
        self.assertRaises(ValueError, self.ask, b"CONNECT")
        self.assertEqual(b"", self.origin.sent)

    def test_unasked(self):
        """A 101 that was not asked for is an error."""
        receiver = self.ask()
        self.answer(SWITCHING)
        self.assert_failed(receiver, "unasked", False)
        self.assertEqual([], self.answers)

    def test_request_incomplete(self):
        """So is one that comes before the request is complete."""
        receiver = self.ask(b"POST", *UPGRADE, has_body=True, upgrade=True)
        self.answer(SWITCHING)
        self.assert_failed(receiver, "unasked", False)

    def test_not_taken(self):
        """A 101 that nobody takes ends the exchange."""
        receiver = self.ask(b"GET", *UPGRADE, waits=True, upgrade=True)
        self.answer(SWITCHING)
        self.assert_failed(receiver, "aborted", False)

    def test_refused(self):
        """A refusal has a body, and the connection is used again."""
        receiver = self.ask(b"GET", *UPGRADE, upgrade=True)
        self.answer(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nn")
        self.answer(b"o")
        self.assertEqual((b"no", [None]), (receiver.sink.body, receiver.ends))
        self.assertEqual([(self.connection, False)], self.answers)
        self.assertTrue(self.connection.reusable)
        with self.assertRaises(RuntimeError):
            self.ask(waits=True).exchange.switch(Recorder())
        receiver.exchange.switch(Recorder())


class ReadyTests(SynchronousTestCase):
    """When requests can be sent."""

    def setUp(self):
        """Make a connection that is not connected yet."""
        self.clock = MemoryReactorClock()
        self.connection = ClientConnection(self.clock)

    def test_plain(self):
        """A plain connection is ready once it is there."""
        early = self.connection.when_ready()
        self.assertNoResult(early)
        MemoryConnection(self.clock).open(self.connection)
        self.assertIs(self.connection, self.successResultOf(early))
        self.assertIs(self.connection, self.successResultOf(self.connection.when_ready()))

    def test_secure(self):
        """Over TLS the handshake comes first."""
        SecureConnection(self.clock).open(self.connection)
        ready = self.connection.when_ready()
        self.assertNoResult(ready)
        self.connection.handshakeCompleted()
        self.assertIs(self.connection, self.successResultOf(ready))

    def test_lost(self):
        """A connection that is lost before fails with the reason."""
        transport = SecureConnection(self.clock).open(self.connection)
        ready = self.connection.when_ready()
        transport.break_off(ConnectionLost("bad certificate"))
        self.failureResultOf(ready, ConnectionLost)
        self.failureResultOf(self.connection.when_ready(), ConnectionLost)
