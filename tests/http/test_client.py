"""Requests and their responses."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from zope.interface.verify import verifyObject

from tests.http.client_world import HOST, SWITCHING, UPGRADE, ClientTestCase
from tests.http.support import Receiver, begin
from tests.tunnel.memory import Producer
from yurttunnel.http.client import write_request
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import ExchangeFailed, IClientExchange


class RequestTests(ClientTestCase):
    """Sending of requests."""

    def test_interfaces(self):
        """Exchanges and connections provide their interfaces."""
        receiver = self.ask()
        self.assertTrue(verifyObject(IClientExchange, receiver.exchange))
        self.assertTrue(verifyObject(IHalfCloseableProtocol, self.connection))
        self.assertTrue(verifyObject(IHandshakeListener, self.connection))

    def test_without_body(self):
        """A request without a body is only its head; finishing it adds nothing."""
        receiver = self.ask()
        receiver.exchange.finish()
        self.settle()
        self.assertEqual(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n", self.origin.sent)

    def test_empty_post(self):
        """A method that usually has a body announces an empty one."""
        self.ask(b"POST")
        self.assertTrue(self.origin.sent.endswith(b"\r\nContent-Length: 0\r\n\r\n"))

    def test_length(self):
        """A body of known length is sent unchanged."""
        receiver = self.ask(b"PUT", (b"Content-Length", b"4"), has_body=True)
        receiver.exchange.write(b"ab")
        receiver.exchange.write(b"cd")
        receiver.exchange.finish([(b"X", b"y")])
        self.settle()
        self.assertTrue(self.origin.sent.endswith(b"Content-Length: 4\r\n\r\nabcd"))

    def test_chunks(self):
        """A body of unknown length is sent chunked, with its trailers."""
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
        """A body that is longer or shorter than announced is a defect, and fails."""
        for body in (b"123", b"1"):
            self.lost.clear()
            self.connect()
            receiver = self.ask(b"PUT", (b"Content-Length", b"2"), has_body=True)
            receiver.exchange.write(body)
            receiver.exchange.finish()
            self.assert_failed(receiver, "aborted", True)
        self.flushLoggedErrors()

    def test_unsafe_requests(self):
        """An invalid request is rejected, and the connection stays usable."""
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
        """A connection that is in use or closed accepts no request."""
        self.ask()
        for _ in range(2):
            with self.assertRaises(ExchangeFailed) as caught:
                self.ask()
            self.assertTrue(caught.exception.unanswered)
            self.connection.close()

    def test_back_pressure(self):
        """The producer of a body is paused while the origin does not keep up."""
        receiver = self.ask(b"POST", has_body=True)
        producer = Producer()
        receiver.exchange.registerProducer(producer, True)
        receiver.exchange.write(bytes(100_000))
        self.assertEqual(["pause"], producer.events)
        self.settle()
        self.assertEqual(["pause", "resume"], producer.events)
        receiver.exchange.unregisterProducer()
        with self.assertRaises(ValueError):
            receiver.exchange.registerProducer(producer, False)


class ResponseTests(ClientTestCase):
    """Receiving of responses."""

    def assert_complete(self, receiver, body=b"", trailers=()):
        """Check that a complete response was received."""
        self.assertEqual([None], receiver.ends)
        self.assertEqual((body, list(trailers)), (receiver.sink.body, receiver.sink.trailers))

    def test_length(self):
        """A body of known length is received."""
        receiver = self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX: y\r\n\r\nab")
        self.assertEqual([], receiver.ends)
        self.assertTrue(receiver.exchange.has_body)
        self.answer(b"cd")
        self.assert_complete(receiver, b"abcd")
        self.assertEqual((200, [b"y"]), (receiver.head.status, receiver.head.values(b"x")))

    def test_chunks(self):
        """A chunked body with trailers is received."""
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
        """Responses to HEAD, 204 and 304 have no body, whatever they announce."""
        for method, head in (
            (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
            (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
            (b"HEAD", b"HTTP/1.1 204 No Content\r\n\r\n"),
            (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ):
            receiver = self.ask(method)
            self.answer(head)
            self.assert_complete(receiver)
            self.assertFalse(receiver.exchange.has_body)
            self.assertTrue(self.connection.reusable)

    def test_head_without_length(self):
        """After a response to HEAD without a length the connection is closed.

        The server may still be making the body, such as a watch, and read no other request before.
        """
        for fields in (b"", b"Transfer-Encoding: chunked\r\n"):
            self.lost.clear()
            self.connect()
            receiver = self.ask(b"HEAD")
            self.answer(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n")
            self.assert_complete(receiver)
            self.assertFalse(receiver.exchange.has_body)
            self.assertFalse(self.connection.reusable)
            self.settle()
            self.assertEqual(([], [self.connection]), (self.idle, self.lost))

    def test_take_whole(self):
        """A body that came with the head is returned at once, and the connection is free again."""
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
        """A connection with data after the response is not reused."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc")
        self.assertEqual(b"a", receiver.exchange.take_whole())
        self.settle()
        self.assertEqual(([], [self.connection]), (self.idle, self.lost))

    def test_nothing_whole_to_take(self):
        """An incomplete body, or one without a length, has to be delivered."""
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
        """Interim responses are reported one by one, before the final one."""
        receiver = self.ask()
        self.answer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")
        self.assertEqual([100, 103], [head.status for head in receiver.informational])
        self.assertIsNone(receiver.head)
        self.answer(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
        self.assertEqual(3, len(receiver.informational))
        self.assert_complete(receiver)

    def test_many_interim_responses(self):
        """Each request may have at most 16 interim responses."""
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
        """Interim responses have at most 64 KiB, however split; the final head does not count."""
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
        """The added field follows the others; invalid values and framing fields are rejected."""
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

    def test_on_response(self):
        """``on_response`` is called for a final head, unless the response is complete."""
        self.ask()
        self.answer(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Len")
        self.assertEqual([], self.responses)
        self.answer(b"gth: 1\r\n\r\n")
        self.assertEqual([(self.connection, False)], self.responses)
        self.answer(b"a")
        self.ask()
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
        self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
        self.assertEqual([(self.connection, False)] * 2, self.responses)

    def test_ended_by_the_receiver(self):
        """A connection that is closed in ``on_response`` is not handed over."""
        receiver = self.ask(b"GET", *UPGRADE, upgrade=True)
        self.connection.on_response = lambda connection, switches: connection.close()
        self.answer(SWITCHING)
        self.assertIsNone(receiver.head)
        self.assert_failed(receiver, "the connection was closed", unanswered=False)

    def test_paused_until_read(self):
        """Only one read is held of a response whose body has no consumer."""
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
        """No more of a paused response is read."""
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
        """A complete response whose connection has ended can still be read."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\n\r\nabc")
        self.origin.break_off(ConnectionDone())
        self.assertEqual([], receiver.ends)
        receiver.exchange.deliver_body(receiver.sink)
        self.assert_complete(receiver, b"abc")

    def test_broken_while_unwanted(self):
        """An incomplete response whose connection has ended fails when it is read."""
        receiver = self.ask(waits=True)
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc")
        self.origin.break_off(ConnectionDone())
        receiver.exchange.deliver_body(receiver.sink)
        self.assertEqual(b"abc", receiver.sink.body)
        self.assertFalse(receiver.sink.finished)
        self.assert_failed(receiver, "truncated", False)

    def test_early_answer(self):
        """A response before the request is complete is accepted, and ends the connection."""
        receiver = self.ask(b"POST", has_body=True)
        self.answer(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        self.assert_complete(receiver, b"no")
        self.assertFalse(self.connection.reusable)
        self.assertTrue(self.origin.aborted)
        self.assertEqual([], self.idle)
        receiver.exchange.write(b"late")
        receiver.exchange.finish()
