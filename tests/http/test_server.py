"""The side that serves."""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IHandshakeListener,
)
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.fakes import FakeStream, MemoryConnection, Recorder
from tests.http.support import (
    Handler,
    Receiver,
    SecureConnection,
    Server,
    Sink,
    request,
    responses,
    settle,
)
from tests.tunnel.certificates import ClientTLS, ServerTLS
from tests.tunnel.memory import Producer, User
from tests.tunnel.test_connection import Link
from yurttunnel.http import server_connection
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.connection import all_taken
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import ExchangeFailed, IExchange
from yurttunnel.http.request_body import BodyTooLarge, read_body
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.http.server_connection import MAX_DROPPED
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import with_transports

CHUNKED = b"Transfer-Encoding: chunked"
CLOSE = b"Connection: close"


def hello(exchange):
    """Answer with a body."""
    exchange.respond(200, [(b"X-Target", exchange.head.target)], b"hello")


class ServerTestCase(SynchronousTestCase):
    """A server with one client over plain TCP."""

    kind = MemoryConnection
    settings = ServerSettings()

    def setUp(self):
        """Connect."""
        self.server = Server(self.settings)
        self.addCleanup(self.server.factory.close)
        self.clock = self.server.clock
        self.handler = self.server.handler
        self.client = self.server.connect(self.kind)

    def settle(self):
        """Let everything be sent."""
        settle(self.clock, self.client)

    def send(self, data):
        """Have the client send."""
        self.client.receive(data)
        self.settle()

    def responses(self, *methods, closed=False):
        """Read what the client has got."""
        self.settle()
        return responses(self.client.sent, *(methods or ("GET",)), closed=closed)

    def pass_time(self, seconds):
        """Let time pass."""
        for _ in range(round(seconds * 4)):
            self.clock.advance(0.25)
            self.settle()

    @property
    def exchange(self):
        """The newest exchange."""
        return self.handler.exchange


class ExchangeTests(ServerTestCase):
    """Requests and responses on a connection that is kept."""

    def test_interfaces(self):
        """Exchanges and connections provide what they say."""
        self.send(request())
        self.assertTrue(verifyObject(IExchange, self.exchange))
        self.assertTrue(verifyObject(IHalfCloseableProtocol, self.client.protocol))

    def test_head(self):
        """A handler sees the request as it was sent, and where from."""
        self.send(request(b"/a?b", b"X-A: 1", method=b"DELETE"))
        exchange = self.exchange
        head = exchange.head
        self.assertEqual((b"DELETE", b"/a?b", "1.1"), (head.method, head.target, head.version))
        self.assertEqual([(b"Host", b"node"), (b"X-A", b"1")], head.fields)
        self.assertFalse(exchange.secure)
        self.assertIs(self.client, exchange.transport)
        self.assertFalse(exchange.has_body)

    def test_keep_alive(self):
        """One connection carries one exchange after the other."""
        self.handler.answer = hello
        for number in range(3):
            self.send(request(b"/%d" % number))
        answers = self.responses("GET", "GET", "GET")
        self.assertEqual(
            [b"/0", b"/1", b"/2"], [fields[b"x-target"] for _, fields, _, _ in answers]
        )
        self.assertNotIn(b"connection", answers[-1][1])
        self.assertEqual([None] * 3, [error for _, error in self.handler.ends])
        self.assertFalse(self.client.write_ended)

    def test_whole_response_is_one_write(self):
        """A response that is there at once goes out in one piece."""
        self.handler.answer = hello
        self.send(request())
        self.assertEqual(1, len(self.client.segments))

    def test_what_an_exchange_tells(self):
        """Status, sent bytes and whether the response has begun are there for logs."""
        self.send(request())
        exchange = self.exchange
        self.assertEqual((False, 0, 0), (exchange.head_sent, exchange.status, exchange.bytes_sent))
        exchange.send_head(404)
        exchange.write(b"12345")
        exchange.write(b"")
        self.assertEqual((True, 404, 5), (exchange.head_sent, exchange.status, exchange.bytes_sent))

    def test_head_cut_anywhere(self):
        """A head may come in pieces of any size."""
        self.handler.answer = hello
        for byte in request(b"/slow"):
            self.client.receive(bytes([byte]))
        self.assertEqual(b"/slow", self.responses()[0][1][b"x-target"])

    def test_usual_reason(self):
        """A response without a reason gets the usual one, others their own."""
        self.handler.answer = lambda exchange: exchange.respond(404)
        self.send(request())
        self.handler.answer = lambda exchange: (
            exchange.send_head(404, [], b"Gone Fishing"),
            exchange.finish(),
        )
        self.send(request())
        self.assertIn(b"HTTP/1.1 404 Not Found\r\n", self.client.sent)
        self.assertIn(b"HTTP/1.1 404 Gone Fishing\r\n", self.client.sent)

    def test_unsafe_responses(self):
        """What would be read as something else is refused, and can still be answered properly."""
        self.send(request())
        exchange = self.exchange
        for status, fields in (
            (200, [(b"A", b"b\r\nC: d")]),
            (200, [(b"A b", b"c")]),
            (200, [(b"Content-Length", b"+5")]),
            (200, [(b"Content-Length", b"5"), (b"content-length", b"6")]),
            (200, [(b"Transfer-Encoding", b"chunked")]),
            (200, [(b"connection", b"close")]),
            (101, []),
            (199, []),
            (600, []),
        ):
            with self.assertRaises(ValueError):
                exchange.send_head(status, fields)
        with self.assertRaises(ValueError):
            exchange.send_informational(101)
        with self.assertRaises(ValueError):
            exchange.send_informational(200)
        exchange.respond(200)
        self.assertEqual(200, self.responses()[0][0])

    def test_calls_out_of_order(self):
        """A body before the head, or a second head, is a defect of the handler."""
        self.send(request())
        with self.assertRaises(RuntimeError):
            self.exchange.write(b"early")
        with self.assertRaises(RuntimeError):
            self.exchange.finish()
        self.exchange.send_head(200)
        with self.assertRaises(RuntimeError):
            self.exchange.send_head(200)
        with self.assertRaises(RuntimeError):
            self.exchange.respond(200)

    def test_calls_after_the_end(self):
        """After an exchange has ended its methods do nothing, not even to the next exchange."""
        self.handler.answer = hello
        self.send(request())
        old = self.exchange
        self.handler.answer = None
        self.send(request())
        old.send_informational(102)
        old.send_head(500)
        old.write(b"late")
        old.finish()
        old.respond(500)
        old.respond_from(500, [], old)
        old.fail(500, "late")
        old.switch(101, b"", [], User())
        old.abort()
        old.registerProducer(Producer(), True)
        old.unregisterProducer()
        old.pauseProducing()
        old.resumeProducing()
        old.deliver_body(Sink())
        hello(self.exchange)
        self.assertEqual([200, 200], [answer[0] for answer in self.responses("GET", "GET")])
        self.assertTrue(self.client.reading)

    def test_on_end_after_the_end(self):
        """Who asks late is told at once; who asks together is told in order."""
        told = []
        self.send(request())
        self.exchange.on_end(lambda error: told.append(("first", error)))
        self.exchange.on_end(lambda error: told.append(("second", error)))
        self.exchange.respond(200)
        self.exchange.on_end(lambda error: told.append(("late", error)))
        self.assertEqual([("first", None), ("second", None), ("late", None)], told)

    def test_defect_in_a_callback(self):
        """A callback that raises is logged, and the others are called."""
        told = []
        self.send(request())
        self.exchange.on_end(lambda error: 1 / 0)
        self.exchange.on_end(told.append)
        self.exchange.respond(200)
        self.assertEqual([None], told)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_defect_in_the_handler(self):
        """A handler that raises is logged, and the client gets 500."""
        self.handler.answer = lambda exchange: 1 / 0
        self.send(request())
        self.assertEqual(500, self.responses()[0][0])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_defect_after_the_response_has_begun(self):
        """A handler that raises in the middle has the connection cut."""

        def answer(exchange):
            exchange.send_head(200)
            raise ZeroDivisionError

        self.handler.answer = answer
        self.send(request())
        self.assertTrue(self.client.aborted)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_failures_for_people(self):
        """A failure is told as the client can read it, and the connection goes on."""
        self.handler.answer = lambda exchange: exchange.fail(503, "edge-1 is not connected")
        self.send(request(b"/", b"Accept: application/json, */*"))
        self.send(request())
        (status, fields, body, _), (_, _, text, _) = self.responses("GET", "GET")
        self.assertEqual((503, b"application/json"), (status, fields[b"content-type"]))
        self.assertIn(b'"kind": "Status"', body)
        self.assertEqual(b"edge-1 is not connected\n", text)

    def test_failure_after_the_response_has_begun(self):
        """A response that has begun cannot be taken back: the connection is cut."""
        self.send(request())
        self.exchange.send_head(200)
        self.exchange.fail(500, "too late")
        self.assertTrue(self.client.aborted)
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)

    def test_abort(self):
        """An aborted exchange ends with an error, and the client sees that it is no end."""
        self.send(request())
        self.exchange.abort()
        self.assertTrue(self.client.aborted)
        self.assertIn("aborted", str(self.handler.ends[0][1]))
        self.assertEqual(1, len(self.handler.ends))

    def test_wrong_length(self):
        """A response with more or less than its length is a defect, and cut."""
        for body in (b"123", b"1"):
            client = self.server.connect()
            client.receive(request())
            self.exchange.send_head(200, [(b"Content-Length", b"2")])
            self.exchange.write(body)
            self.exchange.finish()
            self.assertTrue(client.aborted)
            self.assertNotIn(b"123", client.sent)


class FramingTests(ServerTestCase):
    """How the ends of responses are told."""

    def answer(self, sent, *fields):
        """Have a request answered in two pieces."""
        self.send(sent)
        self.exchange.send_head(200, fields)
        self.exchange.write(b"one ")
        self.exchange.write(b"two")
        self.exchange.finish([(b"Server-Timing", b"t")])
        self.settle()

    def test_length(self):
        """With a Content-Length the body is sent as it is."""
        self.answer(request(), (b"Content-Length", b"7"))
        self.assertTrue(self.client.sent.endswith(b"\r\n\r\none two"))
        self.assertNotIn(b"Transfer-Encoding", self.client.sent)

    def test_chunks_and_trailers(self):
        """Without one it is sent in chunks, and trailers follow."""
        self.answer(request())
        ((_, _, body, trailers),) = self.responses()
        self.assertEqual((b"one two", {b"server-timing": b"t"}), (body, trailers))
        self.assertFalse(self.client.write_ended)

    def test_old_client(self):
        """A client of HTTP/1.0 gets it until the connection is closed."""
        self.answer(request(version=b"1.0", target=b"/"))
        self.assertTrue(self.client.sent.endswith(b"Connection: close\r\n\r\none two"))
        self.assertNotIn(b"Transfer-Encoding", self.client.sent)
        self.assertTrue(self.client.write_ended)

    def test_old_client_with_keep_alive(self):
        """A client of HTTP/1.0 that asks for it keeps its connection where the length is known."""
        self.answer(
            request(b"/", b"Connection: keep-alive", version=b"1.0"), (b"Content-Length", b"7")
        )
        self.assertIn(b"Connection: keep-alive\r\n", self.client.sent)
        self.handler.answer = hello
        self.send(request())
        self.assertEqual(2, len(self.responses("GET", "GET")))

    def test_head(self):
        """The answer to HEAD has the length of the body, and not the body."""
        self.handler.answer = hello
        self.send(request(method=b"HEAD"))
        self.send(request())
        head, get = self.responses("HEAD", "GET")
        self.assertEqual((b"5", b""), (head[1][b"content-length"], head[2]))
        self.assertEqual(b"hello", get[2])

    def test_no_content(self):
        """204 has neither a body nor a length, whatever is given; 304 may have a length."""
        for status in (204, 304):
            self.handler.answer = lambda exchange, status=status: (
                exchange.send_head(status, [(b"Content-Length", b"5")]),
                exchange.write(b"12345"),
                exchange.finish(),
            )
            self.send(request())
        self.handler.answer = lambda exchange: exchange.respond(204, [], b"dropped")
        self.send(request())
        first, second, third = self.responses("GET", "GET", "GET")
        self.assertEqual((204, b""), (first[0], first[2]))
        self.assertNotIn(b"content-length", first[1])
        self.assertEqual((304, b"5", b""), (second[0], second[1][b"content-length"], second[2]))
        self.assertEqual((204, b""), (third[0], third[2]))

    def test_interim_responses(self):
        """Interim responses go before the final one; clients of HTTP/1.0 get none."""

        def answer(exchange):
            exchange.send_informational(103, [(b"Link", b"</a>")])
            exchange.send_informational(199)
            hello(exchange)
            exchange.send_informational(102)

        self.handler.answer = answer
        self.send(request())
        self.assertEqual([103, 199, 200], [answer[0] for answer in self.responses()])
        old = self.server.connect()
        old.receive(request(version=b"1.0"))
        settle(self.clock, old)
        self.assertTrue(old.sent.startswith(b"HTTP/1.1 200 "))


class RequestBodyTests(ServerTestCase):
    """Bodies of requests."""

    def test_length(self):
        """A body of known length is delivered in the pieces in which it comes."""
        self.send(request(b"/", b"Content-Length: 6", method=b"PUT", body=b"ab"))
        self.assertTrue(self.exchange.has_body)
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.settle()
        self.send(b"cd")
        self.assertFalse(sink.finished)
        self.send(b"ef")
        self.assertEqual(([b"ab", b"cd", b"ef"], []), (sink.pieces, sink.trailers))

    def test_the_client_ends_its_direction_behind_a_body(self):
        """It has sent all that it has, and waits for its answer."""
        self.send(request(b"/", b"Content-Length: 2", method=b"PUT", body=b"ab"))
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.assertTrue(sink.finished)
        self.client.receive_end()
        self.settle()
        self.assertEqual([], self.handler.ends)
        self.exchange.respond(200, [], b"taken")
        self.settle()
        self.assertEqual([(200, b"taken")], [(each[0], each[2]) for each in self.responses()])

    def test_chunks_and_trailers(self):
        """Chunks are decoded, trailers are told."""
        body = b"3\r\nabc\r\n0\r\nX-T: v\r\n\r\n"
        self.send(request(b"/", CHUNKED, method=b"POST", body=body))
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.assertEqual((b"abc", [(b"X-T", b"v")]), (sink.body, sink.trailers))

    def test_no_body(self):
        """A request without one finishes its sink at once."""
        self.send(request())
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.assertEqual((b"", []), (sink.body, sink.trailers))
        with self.assertRaises(RuntimeError):
            self.exchange.deliver_body(sink)

    def test_paused_until_wanted(self):
        """Nothing but one read is taken of a body that nobody wants yet."""
        self.send(request(b"/", b"Content-Length: 100000", method=b"PUT"))
        self.assertTrue(self.client.reading)
        self.send(bytes(1000))
        self.assertFalse(self.client.reading)
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.assertTrue(self.client.reading)
        self.send(bytes(99000))
        self.assertEqual((100000, []), (len(sink.body), sink.trailers))

    def test_back_pressure(self):
        """A paused body is not read on, and goes on when resumed."""
        self.send(request(b"/", b"Content-Length: 9", method=b"PUT"))
        sink = Sink()
        exchange = self.exchange
        exchange.deliver_body(sink)
        exchange.pauseProducing()
        self.assertFalse(self.client.reading)
        self.send(b"123456789")
        self.assertEqual(b"", sink.body)
        exchange.resumeProducing()
        self.settle()
        self.assertTrue(sink.finished)
        exchange.stopProducing()
        self.assertTrue(self.client.reading)

    def test_ends_while_paused(self):
        """A body whose last piece comes as it is paused leaves the connection readable."""
        self.send(request(b"/", b"Content-Length: 3", method=b"PUT"))
        exchange = self.exchange
        sink = Sink()
        sink.write = lambda data: exchange.pauseProducing()
        exchange.deliver_body(sink)
        self.send(b"123")
        self.assertTrue(sink.finished)
        hello(exchange)
        self.handler.answer = hello
        self.send(request())
        self.assertEqual(2, len(self.responses("GET", "GET")))

    def test_answer_after_the_body(self):
        """A connection is kept when the body was read, and what follows is the next request."""
        body = b"ab" + request(b"/2")
        self.send(request(b"/1", b"Content-Length: 2", method=b"PUT", body=body))
        self.exchange.deliver_body(Sink())
        self.assertEqual(1, len(self.handler.exchanges))
        hello(self.exchange)
        self.assertEqual(2, len(self.handler.exchanges))
        hello(self.exchange)
        self.assertEqual(
            [b"/1", b"/2"], [answer[1][b"x-target"] for answer in self.responses("GET", "GET")]
        )

    def test_malformed_body(self):
        """A body that is not what its framing says is answered with 400, and the exchange fails."""
        self.send(request(b"/", CHUNKED, method=b"POST", body=b"0x3\r\nabc\r\n0\r\n\r\n"))
        sink = Sink()
        self.exchange.deliver_body(sink)
        ((status, fields, _, _),) = self.responses(closed=True)
        self.assertEqual((400, b"close"), (status, fields[b"connection"]))
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)
        self.assertEqual([400], self.handler.statuses)
        self.assertFalse(sink.finished)

    def test_malformed_body_after_the_response_has_begun(self):
        """Then the connection is cut."""
        self.send(request(b"/", CHUNKED, method=b"POST"))
        self.exchange.deliver_body(Sink())
        self.exchange.send_head(200)
        self.send(b"zz\r\n")
        self.assertTrue(self.client.aborted)
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)
        self.assertEqual([200], self.handler.statuses)

    def test_overdue_body(self):
        """A body that comes at less than the rate is answered with 408, however it drips."""
        self.send(request(b"/", b"Content-Length: 100000", method=b"PUT"))
        self.exchange.deliver_body(Sink())
        for _ in range(3):
            self.pass_time(10)
            self.send(bytes(5_000))
            self.pass_time(9)
            self.send(bytes(5_000))
            self.pass_time(1)
        self.assertEqual([], self.handler.ends)
        for _ in range(19):
            self.pass_time(1)
            self.send(bytes(500))
        self.assertEqual([], self.handler.ends)
        self.pass_time(1)
        self.assertEqual(408, responses(self.client.sent, "GET", closed=True)[0][0])
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)
        self.assertEqual([408], self.handler.statuses)
        self.assertEqual({}, self.server.factory.refusals)

    def test_paused_body_is_not_overdue(self):
        """A body that is paused by who takes it has time."""
        self.send(request(b"/", b"Content-Length: 3", method=b"PUT"))
        exchange = self.exchange
        exchange.deliver_body(Sink())
        exchange.pauseProducing()
        self.pass_time(210)
        self.assertEqual([], self.handler.ends)
        exchange.resumeProducing()
        self.pass_time(10)
        exchange.pauseProducing()
        exchange.resumeProducing()
        self.pass_time(19)
        self.assertEqual([], self.handler.ends)
        self.send(b"123")
        hello(exchange)
        self.assertEqual(200, self.responses()[0][0])


class ReadBodyTests(ServerTestCase):
    """``read_body``."""

    def read(self, *fields, body=b"", version=b"1.1"):
        """Begin to read the body of a request."""
        self.send(request(b"/", *fields, method=b"POST", body=body, version=version))
        return read_body(self.exchange, 10)

    def test_whole(self):
        """The pieces come as one."""
        reading = self.read(b"Content-Length: 10", body=b"01234")
        self.assertNoResult(reading)
        self.send(b"56789")
        self.assertEqual(b"0123456789", self.successResultOf(reading))
        self.exchange.respond(200)
        self.assertEqual(200, self.responses()[0][0])

    def test_none(self):
        """A request without a body has an empty one."""
        self.assertEqual(b"", self.successResultOf(self.read()))

    def test_announced_too_large(self):
        """A body whose length is too large is not even asked for."""
        reading = self.read(b"Content-Length: 11", b"Expect: 100-continue")
        error = self.failureResultOf(reading, BodyTooLarge).value
        self.assertEqual(b"", self.client.sent)
        self.exchange.fail(error.status, str(error))
        status, _, body, _ = self.responses(closed=True)[0]
        self.assertEqual((413, b"the request body is longer than 10 bytes\n"), (status, body))

    def test_too_large(self):
        """A body of unknown length is given up once it is too large."""
        reading = self.read(CHUNKED, body=b"a\r\n0123456789\r\n")
        self.assertNoResult(reading)
        self.send(b"1\r\nx\r\n")
        self.failureResultOf(reading, BodyTooLarge)

    def test_client_leaves(self):
        """A client that leaves before the end is a failure."""
        reading = self.read(b"Content-Length: 10", body=b"0")
        self.client.receive_end()
        self.failureResultOf(reading, ExchangeFailed)

    def test_answered_before(self):
        """So is an answer before the end."""
        reading = self.read(b"Content-Length: 10", body=b"0")
        self.exchange.respond(200)
        self.failureResultOf(reading, ExchangeFailed)

    def test_expectation(self):
        """A client that expects ``100 Continue`` gets it, but not with HTTP/1.0."""
        reading = self.read(b"Content-Length: 1", b"Expect: 100-continue")
        self.settle()
        self.assertEqual(b"HTTP/1.1 100 Continue\r\n\r\n", self.client.sent)
        self.send(b"1")
        self.assertEqual(b"1", self.successResultOf(reading))
        self.client = self.server.connect()
        reading = self.read(b"Content-Length: 1", b"Expect: 100-continue", version=b"1.0")
        self.send(b"1")
        self.assertEqual(b"1", self.successResultOf(reading))
        self.assertEqual(b"", self.client.sent)


class PipeliningTests(ServerTestCase):
    """Requests that come before the one before them is answered."""

    def test_order(self):
        """They are given out one by one, so that no answer can overtake another."""
        self.send(request(b"/1") + request(b"/2") + request(b"/3"))
        for number in (1, 2, 3):
            self.assertEqual(number, len(self.handler.exchanges))
            hello(self.exchange)
        answers = self.responses("GET", "GET", "GET")
        self.assertEqual([b"/1", b"/2", b"/3"], [answer[1][b"x-target"] for answer in answers])

    def test_one_read_is_held(self):
        """Behind a request that is not answered yet one read is taken, and no more."""
        self.send(request(b"/1"))
        self.assertTrue(self.client.reading)
        self.send(request(b"/2"))
        self.assertFalse(self.client.reading)
        self.send(request(b"/3"))
        hello(self.exchange)
        self.assertEqual(b"/2", self.exchange.head.target)
        hello(self.exchange)
        self.settle()
        self.assertEqual(b"/3", self.exchange.head.target)

    def test_many_at_once(self):
        """Thousands in one read are answered without recursion, at once or later."""
        count = 3000
        self.handler.answer = hello
        self.send(request() * count)
        self.assertEqual(count, len(self.handler.exchanges))
        self.handler.answer = None
        self.send(request() * count)
        for _ in range(count):
            hello(self.exchange)
            if not self.client.reading:
                self.settle()
        self.settle()
        self.assertEqual(2 * count, self.client.sent.count(b"hello"))

    def test_client_that_does_not_read(self):
        """A client that sends requests and takes no responses is not read any more."""
        self.handler.answer = lambda exchange: exchange.respond(200, [], bytes(30_000))
        for _ in range(100):
            self.client.receive(request())
        self.assertLess(len(self.handler.exchanges), 5)
        self.assertFalse(self.client.reading)
        self.settle()
        self.assertEqual(100, len(self.handler.exchanges))
        self.assertTrue(self.client.reading)

    def test_close_in_between(self):
        """What follows a request that wants the connection closed is dropped."""
        self.handler.answer = hello
        self.send(request(b"/1", CLOSE) + request(b"/2"))
        self.assertEqual(1, len(self.handler.exchanges))
        self.assertEqual(b"close", self.responses()[0][1][b"connection"])


class BackPressureTests(ServerTestCase):
    """Responses that a client does not take."""

    def test_producer(self):
        """A producer is paused while much waits to be sent, and resumed when it is sent."""
        self.send(request())
        producer = Producer()
        self.exchange.registerProducer(producer, True)
        self.exchange.send_head(200)
        self.exchange.write(bytes(100_000))
        self.assertEqual(["pause"], producer.told)
        self.settle()
        self.assertEqual(["pause", "resume"], producer.told)
        self.exchange.unregisterProducer()
        self.exchange.write(bytes(100_000))
        self.assertEqual(["pause", "resume"], producer.told)

    def test_producer_registered_late(self):
        """A producer that comes while much waits is paused at once."""
        self.send(request())
        self.exchange.send_head(200)
        self.exchange.write(bytes(100_000))
        producer = Producer()
        self.exchange.registerProducer(producer, True)
        self.assertEqual(["pause"], producer.told)

    def test_one_push_producer(self):
        """There is one at a time, and it pushes."""
        self.send(request())
        self.exchange.registerProducer(Producer(), True)
        with self.assertRaises(RuntimeError):
            self.exchange.registerProducer(Producer(), True)
        with self.assertRaises(ValueError):
            self.exchange.registerProducer(Producer(), False)

    def test_forgotten_at_the_end(self):
        """The next exchange has its own producer."""
        self.send(request())
        self.exchange.registerProducer(Producer(), True)
        self.exchange.respond(200)
        self.send(request())
        self.exchange.registerProducer(Producer(), True)

    def test_client_leaves(self):
        """A producer is stopped when the client leaves."""
        self.send(request())
        producer = Producer()
        self.exchange.registerProducer(producer, True)
        self.client.break_off(ConnectionLost("reset"))
        self.assertEqual(["stop"], producer.told)

    def test_response_from_a_source(self):
        """A source fills a response, in one write with the head, paused as a producer."""
        self.send(request())

        class Source(Producer):
            has_body = True

            def deliver_body(self, sink):
                self.sink = sink
                sink.write(b"first ")

        source = Source()
        self.exchange.respond_from(200, [(b"A", b"b")], source, b"Fine")
        self.settle()
        self.assertEqual(1, len(self.client.segments))
        self.assertTrue(self.client.sent.endswith(b"6\r\nfirst \r\n"))
        source.sink.write(bytes(100_000))
        self.assertEqual(["pause"], source.told)
        source.sink.finish()
        status, fields, body, _ = self.responses()[0]
        self.assertEqual((200, b"b", 100_006), (status, fields[b"a"], len(body)))
        self.assertIn(b"200 Fine\r\n", self.client.sent)


class RefusalTests(ServerTestCase):
    """Heads that are refused."""

    settings = ServerSettings(limits=HeadLimits(max_bytes=1000, max_fields=10))

    def refused(self, sent):
        """Send something; give the status with which it is refused."""
        self.client = self.server.connect()
        self.send(sent)
        self.assertEqual([], self.handler.exchanges)
        status, fields, _, _ = self.responses(closed=True)[0]
        self.assertEqual(b"close", fields[b"connection"])
        self.assertTrue(self.client.write_ended)
        return status

    def test_bad_heads(self):
        """Each is answered with its status, and the connection is closed."""
        for status, sent in (
            (400, b"nonsense\r\n\r\n"),
            (400, b"GET / HTTP/1.1\nHost: a\n\n"),
            (400, b"GET / HTTP/1.1\r\n\r\n"),
            (431, request(b"/", b"A: " + bytes(1000).replace(b"\0", b"a"))),
            (431, request(b"/", *[b"A: b"] * 10)),
            (400, request(b"/", b"Content-Length: 1", CHUNKED)),
            (501, request(b"/", b"Transfer-Encoding: gzip, chunked")),
            (417, request(b"/", b"Expect: a-miracle")),
        ):
            self.assertEqual(status, self.refused(sent), sent)
        self.assertEqual({400: 4, 431: 2, 501: 1, 417: 1}, self.server.factory.refusals)

    def test_answers_are_not_counted(self):
        """What a handler refuses is its own business, and not counted here."""
        self.handler.answer = lambda exchange: exchange.fail(400, "no")
        self.send(request())
        self.assertEqual({}, self.server.factory.refusals)

    def test_json(self):
        """A caller whose head could be read is answered as it can read."""
        self.send(request(b"/", b"Accept: application/json", b"Expect: a-miracle"))
        self.assertIn(b'"kind": "Status"', self.client.sent)

    def test_after_a_good_request(self):
        """What comes behind a good request is refused in its turn."""
        self.send(request() + b"nonsense\r\n\r\n")
        self.assertEqual(b"", self.client.sent)
        hello(self.exchange)
        first, second = self.responses("GET", "GET", closed=True)
        self.assertEqual((200, 400), (first[0], second[0]))

    def test_the_rest_is_dropped(self):
        """A refused client may finish sending, within bounds, so that it reads its answer."""
        self.send(b"nonsense\r\n\r\n")
        for _ in range(MAX_DROPPED // 65536):
            self.send(bytes(65536))
        self.assertTrue(self.client.reading)
        self.send(bytes(65536))
        self.assertFalse(self.client.reading)
        self.assertFalse(self.client.aborted)
        self.assertIsNone(self.client.closed_with)
        self.pass_time(5)
        self.assertIsNotNone(self.client.closed_with)

    def test_client_closes(self):
        """A refused client that closes is gone at once."""
        self.send(b"nonsense\r\n\r\n")
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.assertEqual(set(), self.server.factory.connections)


class EarlyAnswerTests(ServerTestCase):
    """Answers before the request is complete."""

    def test_early_answer(self):
        """The response says that the connection is closed, and the rest is dropped in bounds."""
        self.send(request(b"/", b"Content-Length: 100000", method=b"PUT", body=b"begin"))
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.exchange.respond(413, [], b"too much")
        self.assertEqual(b"close", self.responses()[0][1][b"connection"])
        self.assertTrue(self.client.write_ended)
        self.assertEqual([(b"/", None)], self.handler.ends)
        self.send(bytes(50_000))
        self.assertEqual(b"begin", sink.body)
        self.assertFalse(self.client.aborted)
        self.pass_time(5)
        self.assertIsNotNone(self.client.closed_with)

    def test_answer_while_reading(self):
        """A response that begins while the body is read leaves the connection to the next."""
        self.send(request(b"/", b"Content-Length: 4", method=b"PUT", body=b"ab"))
        self.exchange.respond_from(200, [], self.exchange)
        self.send(b"cd")
        self.handler.answer = hello
        self.send(request())
        echoed, _ = self.responses("PUT", "GET")
        self.assertEqual(b"abcd", echoed[2])
        self.assertNotIn(b"connection", echoed[1])

    def test_answer_that_ends_while_reading(self):
        """If such a response is complete before the body, the connection is closed all the same."""
        self.send(request(b"/", b"Content-Length: 4", method=b"PUT", body=b"ab"))
        self.exchange.deliver_body(Sink())
        self.exchange.send_head(200)
        self.exchange.finish()
        self.settle()
        self.assertTrue(self.client.write_ended)

    def test_body_nobody_wanted(self):
        """A body that nobody wanted is dropped as well, even when it was complete."""
        body = b"x" * 10 + request(b"/smuggled")
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT", body=body))
        hello(self.exchange)
        self.assertEqual(b"close", self.responses()[0][1][b"connection"])
        self.assertEqual(1, len(self.handler.exchanges))

    def test_in_the_middle_of_a_piece(self):
        """An answer from within the delivery of the body ends the delivery."""
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT"))
        exchange = self.exchange
        sink = Sink()
        sink.write = lambda data: hello(exchange)
        exchange.deliver_body(sink)
        self.send(b"0123456789" + request(b"/2"))
        self.assertFalse(sink.finished)
        self.assertEqual(1, len(self.responses()))

    def test_slow_taker(self):
        """A client that takes its last response slowly has more time than one that idles."""
        self.send(request(b"/", CLOSE))
        self.exchange.respond(200, [], bytes(1_000_000))
        for _ in range(40):
            self.clock.advance(1)
        self.assertIsNone(self.client.closed_with)
        for _ in range(41):
            self.clock.advance(1)
        self.assertTrue(self.client.aborted)

    def test_all_taken(self):
        """A client that has taken all and does not close gets no more time than to close."""
        self.patch(server_connection, "all_taken", lambda transport: True)
        self.send(request(b"/", CLOSE))
        self.exchange.respond(200, [], bytes(1_000_000))
        for _ in range(5):
            self.clock.advance(1)
        self.assertTrue(self.client.aborted)


class AllTakenTests(SynchronousTestCase):
    """Whether a peer has taken what was sent, as the kernel knows it."""

    def setUp(self):
        """Make a pair of sockets, one of them as a transport, and as one below TLS."""
        near, self.far = socket.socketpair()
        self.addCleanup(near.close)
        self.addCleanup(self.far.close)
        self.near = near
        self.plain = SimpleNamespace(getHandle=lambda: near)
        self.secure = SimpleNamespace(getPeerCertificate=None, transport=self.plain)

    def test_sent_and_read(self):
        """What waits in a socket has not been taken, and is when the peer has read it."""
        for transport in (self.plain, self.secure):
            self.assertTrue(all_taken(transport))
            self.near.send(b"x" * 1000)
            self.assertFalse(all_taken(transport))
            self.far.recv(1000)
            self.assertTrue(all_taken(transport))

    def test_reset(self):
        """Nothing is on its way in a connection that the peer has reset."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
        self.addCleanup(near.close)
        near.setblocking(False)
        try:
            # Until neither end has room for more.
            while near.send(bytes(65536)):
                continue
        except BlockingIOError:
            transport = SimpleNamespace(getHandle=lambda: near)
        self.assertFalse(all_taken(transport))
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        self.assertTrue(all_taken(transport))

    def test_no_socket(self):
        """It cannot be said of a transport without a socket."""
        self.assertFalse(all_taken(SimpleNamespace()))


class DeadlineTests(ServerTestCase):
    """Clients that take their time."""

    def test_body_held_back(self):
        """A client that waits for 100 has as much time as whoever is to say it."""
        head = request(b"/", b"Content-Length: 5", b"Expect: 100-continue", method=b"PUT")
        self.send(head)
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.pass_time(150)
        self.assertEqual(b"", self.client.sent)
        self.exchange.send_informational(100)
        self.pass_time(130)
        self.assertIn(b" 408 ", self.client.sent)

    def test_silent_client(self):
        """A connection on which nothing comes is closed without an answer."""
        self.pass_time(10)
        self.assertEqual(b"", self.client.sent)
        self.assertTrue(self.client.write_ended)
        self.pass_time(5)
        self.assertIsNotNone(self.client.closed_with)
        self.assertEqual({}, self.server.factory.refusals)

    def test_slow_head(self):
        """A head that trickles in is answered with 408 in the end, however steadily it comes."""
        for byte in request(b"/long-enough-for-this")[:39]:
            self.client.receive(bytes([byte]))
            self.clock.advance(0.25)
            self.settle()
        self.assertEqual(b"", self.client.sent)
        self.clock.advance(0.25)
        self.assertEqual(408, self.responses(closed=True)[0][0])
        self.assertEqual({408: 1}, self.server.factory.refusals)

    def test_slow_second_head(self):
        """The second head has its time from its first byte."""
        self.handler.answer = hello
        self.send(request())
        self.pass_time(60)
        self.send(request()[:10])
        self.pass_time(9.75)
        self.assertEqual(1, len(self.responses()))
        self.pass_time(0.25)
        self.assertEqual([200, 408], [a[0] for a in self.responses("GET", "GET", closed=True)])

    def test_idle_connection(self):
        """A connection on which no further request comes is closed without an answer."""
        self.handler.answer = hello
        self.send(request())
        self.pass_time(74)
        self.send(request())
        self.pass_time(74)
        self.assertFalse(self.client.write_ended)
        self.pass_time(1)
        self.assertTrue(self.client.write_ended)
        self.assertEqual(2, len(self.responses("GET", "GET")))

    def test_slow_answer(self):
        """An exchange has all the time that its handler takes."""
        self.send(request())
        self.pass_time(1000)
        hello(self.exchange)
        self.assertEqual(200, self.responses()[0][0])

    def test_no_timer_for_each_request(self):
        """However many requests come, the clock has a handful of calls."""
        self.handler.answer = hello
        for _ in range(100):
            self.send(request())
        self.assertLess(len(self.clock.getDelayedCalls()), 5)


class FullTests(SynchronousTestCase):
    """More connections than a server takes: two, and as many that it waits for to close."""

    def setUp(self):
        """Answer at once what is asked, and keep how often the bounds have had an effect."""
        self.server = Server(ServerSettings(max_connections=2))
        self.factory = self.server.factory
        self.server.handler.answer = hello
        self.clients = []
        self.told = []
        self.factory.on_full = lambda: self.told.append("full")
        self.addCleanup(self.factory.close)

    def connect(self, sent=b""):
        """Connect a client that sends something, a second after all that was before."""
        self.server.clock.advance(1)
        client = self.server.connect()
        self.clients.append(client)
        self.send(client, sent)
        return client

    def send(self, client, data):
        """Have a client send."""
        if data:
            client.receive(data)
        settle(self.server.clock, *self.clients)

    def busy(self, *fields):
        """Connect a client whose request is not answered yet."""
        self.server.handler.answer = None
        client = self.connect(request(b"/", *fields))
        self.server.handler.answer = hello
        return client

    def statuses(self, client, requests=1, closed=False):
        """Return those of its answers."""
        return [each[0] for each in responses(client.sent, *["GET"] * requests, closed=closed)]

    def test_idle(self):
        """Of clients between two requests the one that has asked longest ago makes room."""
        first, second = (self.connect(request()) for _ in range(2))
        self.send(first, request())
        self.assertEqual([], self.told)
        third = self.connect(request())
        self.assertEqual([False, True], [first.write_ended, second.write_ended])
        self.assertEqual([200], self.statuses(third))
        self.connect()
        self.assertEqual([True, False], [first.write_ended, third.write_ended])
        self.assertEqual((["full"] * 2, {}), (self.told, self.factory.refusals))

    def test_an_answer_that_is_not_taken_yet(self):
        """Who makes room can take the rest of its answer, as anybody whose connection ends."""
        slow = self.server.connect()
        slow.receive(request())
        for _ in range(2):
            self.connect(request())
        self.assertEqual(b"", slow.sent)
        settle(self.server.clock, slow)
        self.assertEqual([200], self.statuses(slow, closed=True))

    def test_without_a_head(self):
        """Silent clients make room, and those that do not end a head, begun first or later."""
        silent, slow = self.connect(), self.connect(request())
        self.send(slow, b"GET /")
        idle = self.connect(request())
        self.assertEqual([True, False], [silent.write_ended, slow.write_ended])
        newest = self.connect()
        self.assertEqual([True, False], [slow.write_ended, idle.write_ended])
        self.send(newest, request())
        self.assertEqual([200], self.statuses(newest))
        self.assertEqual([200], self.statuses(idle))

    def test_who_waits_longest(self):
        """Whether for its first request or for another."""
        idle, silent = self.connect(request()), self.connect()
        self.connect()
        self.assertEqual([True, False], [idle.write_ended, silent.write_ended])

    def test_requests_under_way(self):
        """They are never cut off, nor are streams: one too many is told so, and so are others."""
        asking = self.busy()
        upgraded = self.busy(b"Connection: Upgrade", b"Upgrade: spdy/3.1")
        exchange = self.server.handler.exchange
        exchange.switch(101, b"Switching Protocols", [(b"Upgrade", b"spdy/3.1")], User())
        for refused in [self.connect() for _ in range(2)]:
            self.assertEqual([503], self.statuses(refused, closed=True))
        self.assertEqual(({503: 2}, ["full"] * 2), (self.factory.refusals, self.told))
        self.assertEqual([False, False], [asking.aborted, upgraded.aborted])
        hello(self.server.handler.exchanges[0])
        settle(self.server.clock, asking)
        self.assertEqual([200], self.statuses(self.connect(request())))
        self.assertEqual([True, False], [asking.write_ended, upgraded.write_ended])

    def test_one_that_closes(self):
        """It makes room, so that nobody else has to."""
        first, second = self.busy(), self.busy()
        first.break_off(ConnectionLost())
        self.assertEqual([200], self.statuses(self.connect(request())))
        self.assertEqual([], self.told)
        self.assertFalse(second.aborted)

    def test_clients_that_do_not_close(self):
        """Who has its last answer takes no room of others; of too many the oldest is cut off."""
        idle = self.connect(request())
        clients = [self.connect(request(b"/", b"Connection: close")) for _ in range(2)]
        clients.append(self.connect(b"nonsense\r\n\r\n"))
        self.assertEqual([True, False, False], [client.aborted for client in clients])
        self.assertEqual([[200], [200], [400]], [self.statuses(c, closed=True) for c in clients])
        self.assertFalse(idle.write_ended)
        self.assertEqual([], self.told)

    def test_the_end(self):
        """Who makes room is waited for no more, and who closes still is."""
        evicted, idle = (self.connect(request()) for _ in range(2))
        self.connect(request(b"/", b"Connection: close"))
        self.assertTrue(evicted.write_ended)
        drained = self.factory.drain()
        for client in (evicted, idle):
            client.receive_end()
            self.send(client, b"")
        self.assertNoResult(drained)
        self.factory.close()
        self.successResultOf(drained)
        self.assertEqual([], self.server.clock.getDelayedCalls())


class HalfCloseTests(ServerTestCase):
    """Clients that end their direction."""

    def test_behind_a_request(self):
        """A client that ends its direction behind its request gets its answer."""
        self.send(request())
        self.client.receive_end()
        self.pass_time(9)
        hello(self.exchange)
        self.assertEqual(b"close", self.responses()[0][1][b"connection"])
        self.assertIsInstance(self.client.closed_with, ConnectionDone)

    def test_for_good(self):
        """After ten seconds it is taken for one that has left."""
        self.send(request())
        self.client.receive_end()
        self.pass_time(10)
        self.assertTrue(self.client.aborted)
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)

    def test_behind_several_requests(self):
        """All that it has sent is answered."""
        self.send(request(b"/1") + request(b"/2"))
        self.client.receive_end()
        hello(self.exchange)
        self.settle()
        hello(self.exchange)
        answers = self.responses("GET", "GET")
        self.assertEqual([b"/1", b"/2"], [answer[1][b"x-target"] for answer in answers])
        self.assertNotIn(b"connection", answers[0][1])
        self.assertEqual(b"close", answers[1][1][b"connection"])
        self.assertIsNotNone(self.client.closed_with)

    def test_in_a_head(self):
        """A head that will never be complete is dropped, also behind another request."""
        self.send(request()[:10])
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.client = self.server.connect()
        self.send(request() + request()[:10])
        self.client.receive_end()
        hello(self.exchange)
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)

    def test_behind_what_is_held(self):
        """An end that is told while something is held counts when that has been used."""
        self.send(request() + request()[:10])
        self.client.protocol.readConnectionLost()
        hello(self.exchange)
        self.settle()
        self.assertIsNotNone(self.client.closed_with)

    def test_in_a_body(self):
        """A body that will never be complete fails the exchange at once."""
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT", body=b"12"))
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.settle()
        self.client.receive_end()
        self.assertIn("broke off", str(self.handler.ends[0][1]))
        self.assertTrue(self.client.aborted)
        self.assertFalse(sink.finished)

    def test_in_a_body_that_is_wanted_later(self):
        """So it does when the body is asked for after the end has come."""
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT"))
        self.client.receive_end()
        self.assertEqual([], self.handler.ends)
        self.exchange.deliver_body(Sink())
        self.assertIn("broke off", str(self.handler.ends[0][1]))

    def test_idle(self):
        """A connection that idles is closed at its client's end."""
        self.handler.answer = hello
        self.send(request())
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.assertEqual(set(), self.server.factory.connections)

    def test_client_breaks(self):
        """A client that is gone fails the exchange at once."""
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        error = self.handler.ends[0][1]
        self.assertIn("closed the connection", str(error))
        self.assertIsInstance(error.__cause__, ConnectionLost)

    def test_hung_up(self):
        """A client whose connection has ended both ways, as the kernel knows, is not waited for."""

        class Socket(MemoryConnection):
            def __init__(self, reactor):
                super().__init__(reactor)
                self.near, self.far = socket.socketpair()

            def getHandle(self):
                return self.near

        client = self.server.connect(Socket)
        self.addCleanup(client.near.close)
        client.receive(request())
        client.far.close()
        client.receive_end()
        self.assertEqual(1, len(self.handler.ends))


class SecureTests(ServerTestCase):
    """Over TLS."""

    kind = SecureConnection

    def test_secure(self):
        """An exchange tells that it came by TLS."""
        self.send(request())
        self.assertTrue(self.exchange.secure)

    def test_end_is_an_end(self):
        """A client that ends its direction has left."""
        self.send(request())
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)

    def test_close(self):
        """A connection is closed whole after its last response, and aborted in the end."""
        self.handler.answer = hello
        self.send(request(b"/", CLOSE))
        self.assertEqual(200, self.responses()[0][0])
        self.assertIsNotNone(self.client.closed_with)

    def test_peer_that_does_not_close(self):
        """One that never answers the end of TLS is aborted."""
        self.client.loseConnection = lambda: None
        self.send(b"nonsense\r\n\r\n")
        self.pass_time(5)
        self.assertTrue(self.client.aborted)


class HandshakeTests(SynchronousTestCase):
    """Connections that are in their TLS handshake."""

    def setUp(self):
        """Serve two connections and three handshakes at once."""
        self.server = Server(ServerSettings(max_connections=2, max_handshakes=3))
        self.server.handler.answer = hello
        self.factory = self.server.factory
        self.told = []
        self.factory.on_full = lambda: self.told.append("full")
        self.addCleanup(self.factory.close)

    def begin(self):
        """Connect somebody whose handshake is not over."""
        return SecureConnection(self.server.clock).open(self.factory.buildProtocol(None))

    def complete(self, client):
        """End the handshake, and make a request."""
        client.protocol.handshakeCompleted()
        client.receive(request())
        settle(self.server.clock, client)

    def status(self, client, **options):
        """Return that of the only answer."""
        return responses(client.sent, "GET", **options)[0][0]

    def test_interface(self):
        """A connection provides what TLS tells that the handshake is over."""
        self.assertTrue(verifyObject(IHandshakeListener, self.begin().protocol))

    def test_handshaken(self):
        """A connection tells whether its handshake is over; without TLS there is none."""
        client = self.begin()
        self.assertFalse(client.protocol.handshaken)
        client.protocol.handshakeCompleted()
        self.assertTrue(client.protocol.handshaken)
        self.assertTrue(self.server.connect().protocol.handshaken)

    def test_handshakes_are_no_connections(self):
        """However many handshakes do not end, a client whose handshake ends is served."""
        for _ in range(3):
            self.begin()
        self.assertEqual(set(), self.factory.connections)
        for _ in range(2):
            client = self.begin()
            self.complete(client)
            self.assertEqual(200, self.status(client))
        self.assertEqual({}, self.factory.refusals)

    def test_too_many_connections(self):
        """One connection too many is told so when its handshake is over."""
        self.server.handler.answer = None
        for _ in range(2):
            self.complete(self.begin())
        client = self.begin()
        self.assertEqual([], self.told)
        self.complete(client)
        self.assertEqual(503, self.status(client, closed=True))
        self.assertEqual(({503: 1}, ["full"]), (self.factory.refusals, self.told))

    def test_who_makes_room(self):
        """Who has not ended its handshake is not taken for a connection that waits."""
        oldest = self.begin()
        idle = [self.begin() for _ in range(2)]
        for client in idle:
            self.complete(client)
        newest = self.begin()
        self.complete(newest)
        self.assertEqual(200, self.status(newest))
        settle(self.server.clock, *idle)
        self.assertFalse(oldest.aborted)
        self.assertEqual([True, False], [client.closed_with is not None for client in idle])

    def test_flood(self):
        """For one handshake too many the oldest one is aborted, and whoever runs it is told."""
        flood = [self.begin() for _ in range(3)]
        self.assertEqual([], self.told)
        flood += [self.begin() for _ in range(10)]
        self.assertEqual([True] * 10 + [False] * 3, [client.aborted for client in flood])
        self.assertEqual(["full"] * 10, self.told)
        self.complete(flood[-3])
        self.assertEqual(200, self.status(flood[-3]))

    def test_room(self):
        """Handshakes that end, in one way or the other, make room for others."""
        first, second, third = (self.begin() for _ in range(3))
        first.protocol.handshakeCompleted()
        second.break_off(ConnectionLost())
        others = [self.begin() for _ in range(2)]
        self.assertFalse(third.aborted)
        self.begin()
        self.assertTrue(third.aborted)
        self.assertFalse(first.aborted)
        self.assertEqual([False, False], [client.aborted for client in others])

    def test_overdue(self):
        """A handshake has the time of the first head, which it leaves less of."""
        client, late = self.begin(), self.begin()
        self.server.clock.advance(9)
        client.protocol.handshakeCompleted()
        client.receive(request()[:10])
        self.server.clock.advance(1)
        settle(self.server.clock, client, late)
        self.assertEqual(408, self.status(client, closed=True))
        self.assertEqual(b"", late.sent)
        self.assertIsNotNone(late.closed_with)

    def test_drain(self):
        """A drain waits for no handshake: it closes it."""
        client = self.begin()
        drained = self.factory.drain()
        self.assertNoResult(drained)
        settle(self.server.clock, client)
        self.assertIsNotNone(client.closed_with)
        self.successResultOf(drained)

    def test_close(self):
        """Closing aborts handshakes, too."""
        client = self.begin()
        self.factory.close()
        self.assertTrue(client.aborted)
        self.assertEqual([], self.server.clock.getDelayedCalls())


class SecureHandshakeContract:
    """The same with real TLS."""

    transports: str

    def setUp(self):
        """Serve one connection and two handshakes at once."""
        self.clock = Clock()
        self.reactor = with_transports(self.clock, self.transports)
        handler = Handler()
        handler.answer = hello
        settings = ServerSettings(max_connections=1, max_handshakes=2)
        self.factory = HTTPFactory(self.clock, handler, settings)
        self.addCleanup(self.factory.close)
        self.server_side = tls.server_side(self.reactor, ServerTLS([b"http/1.1"]), self.factory)

    def silent(self):
        """Connect somebody who does not even begin the handshake."""
        link = Link(self.clock, User(), self.server_side.buildProtocol(None))
        link.settle()
        return link

    def ask(self):
        """Make a request on a new connection, and give the status of its answer."""
        connection = ClientConnection(self.clock)
        factory = tls.client_side(
            self.reactor,
            ClientTLS([b"http/1.1"], "edge-1"),
            Factory.forProtocol(lambda: connection),
        )
        client = factory.buildProtocol(None)
        link = Link(self.clock, client, self.server_side.buildProtocol(None))
        receiver = Receiver()
        connection.when_ready().addCallback(
            lambda _: setattr(
                receiver,
                "exchange",
                connection.request(b"GET", b"/", [(b"Host", b"node")], receiver),
            )
        )
        link.settle()
        return receiver.head.status

    def test_silent_clients(self):
        """Clients that are silent keep nobody out; the oldest of too many is cut."""
        silent = [self.silent() for _ in range(4)]
        self.assertEqual(200, self.ask())
        for link in silent:
            link.settle()
        told = [link.client_io.protocol.told for link in silent]
        self.assertEqual([["made", "lost"]] * 3 + [["made"]], told)
        self.assertEqual(1, len(self.factory.connections))

    def test_too_many_connections(self):
        """One that is idle makes room; where none is, who is one too many can read that."""
        self.assertEqual([200, 200], [self.ask(), self.ask()])
        self.assertEqual({}, self.factory.refusals)
        (connection,) = self.factory.connections
        self.factory.idle.discard(connection)
        self.assertEqual(503, self.ask())
        self.assertEqual({503: 1}, self.factory.refusals)


class TwistedHandshakeTests(SecureHandshakeContract, SynchronousTestCase):
    """Twisted's TLS."""

    transports = "twisted"


class DirectHandshakeTests(SecureHandshakeContract, SynchronousTestCase):
    """This project's TLS."""

    transports = "direct"


class SwitchTests(ServerTestCase):
    """Handing a connection over to another protocol."""

    UPGRADE = (b"Connection: Upgrade", b"Upgrade: spdy/3.1")
    FIELDS = ((b"Connection", b"Upgrade"), (b"Upgrade", b"spdy/3.1"))

    def switch(self, protocol, early=b""):
        """Have a client ask for it, sending ``early`` bytes."""
        self.send(request(b"/exec", *self.UPGRADE, body=early))
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.settle()

    def test_switch(self):
        """The 101 goes out with its fields as they are; then the bytes are the protocol's."""
        protocol = User()
        self.switch(protocol)
        self.assertEqual(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n",
            self.client.sent,
        )
        self.send(request())
        self.assertEqual(request(), protocol.received)
        self.assertEqual(1, len(self.handler.exchanges))
        protocol.transport.write(b"raw")
        self.settle()
        self.assertTrue(self.client.sent.endswith(b"\r\n\r\nraw"))
        self.assertEqual((101, True), (self.exchange.status, self.exchange.head_sent))
        self.pass_time(1000)
        self.assertEqual([], self.handler.ends)

    def test_it_is_the_response(self):
        """There is no other after it."""
        self.switch(User())
        self.assertRaises(RuntimeError, self.exchange.respond, 200, b"late")
        self.assertRaises(RuntimeError, self.exchange.switch, 101, b"", self.FIELDS, User())

    def test_early_bytes(self):
        """What came behind the head comes first, in order with what follows."""
        protocol = User()
        self.switch(protocol, b"early ")
        self.send(b"and late")
        self.assertEqual(b"early and late", protocol.received)

    def test_later(self):
        """The answer may come later; what the client sends waits unread beyond one piece."""
        self.send(request(b"/exec", *self.UPGRADE))
        self.send(b"one ")
        self.assertFalse(self.client.reading)
        self.send(b"two")
        protocol = User()
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.settle()
        self.assertEqual(b"one two", protocol.received)

    def test_own_producer(self):
        """The protocol may register a producer of its own."""
        protocol = User()
        self.switch(protocol)
        producer = Producer()
        protocol.transport.registerProducer(producer, True)
        protocol.transport.write(bytes(100_000))
        self.assertEqual(["pause"], producer.told)

    def test_half_close(self):
        """A protocol that knows half-close is told of each; another is closed."""
        protocol = Recorder()
        self.switch(protocol)
        self.client.receive_end()
        self.assertEqual(1, protocol.read_ended)
        protocol.transport.loseWriteConnection()
        self.settle()
        self.assertEqual(1, protocol.write_ended)
        self.client = self.server.connect()
        protocol = User()
        self.switch(protocol)
        self.client.receive_end()
        self.settle()
        self.assertEqual(["made", "lost"], protocol.told)

    def test_end_before(self):
        """An end that came before is told afterwards."""
        self.send(request(b"/exec", *self.UPGRADE))
        self.client.receive_end()
        protocol = Recorder()
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.assertEqual(1, protocol.read_ended)
        self.pass_time(20)
        self.assertEqual([], protocol.ended_with)

    def test_end_of_the_exchange(self):
        """The exchange ends with the connection, by an error if that breaks."""
        for reason, kind in ((ConnectionDone(), type(None)), (ConnectionLost(), ExchangeFailed)):
            self.client = self.server.connect()
            protocol = Recorder()
            self.switch(protocol)
            self.client.break_off(reason)
            self.assertEqual([reason], protocol.ended_with)
            self.assertIsInstance(self.handler.ends[-1][1], kind)

    def test_connect(self):
        """A CONNECT is answered by 2xx and handed over the same way."""
        protocol = User()
        self.send(request(b"node:80", method=b"CONNECT", body=b"early"))
        with self.assertRaises(ValueError):
            self.exchange.send_head(200)
        self.exchange.switch(200, b"Connected", [], protocol)
        self.settle()
        self.assertEqual(b"HTTP/1.1 200 Connected\r\n\r\n", self.client.sent)
        self.assertEqual(b"early", protocol.received)

    def test_incomplete_request(self):
        """While the request's body is incomplete nothing can be handed over."""
        self.send(request(b"/", *self.UPGRADE, b"Content-Length: 2", method=b"POST", body=b"1"))
        with self.assertRaises(ValueError):
            self.exchange.switch(101, b"", self.FIELDS, User())
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.settle()
        self.send(b"2raw")
        protocol = User()
        self.exchange.switch(101, b"", self.FIELDS, protocol)
        self.assertEqual(b"raw", protocol.received)

    def test_refusal(self):
        """A refusal is an ordinary response, and the connection goes on."""
        self.handler.answer = lambda exchange: exchange.respond(403, [], b"forbidden")
        self.send(request(b"/exec", *self.UPGRADE))
        self.send(request())
        self.assertEqual([403, 403], [answer[0] for answer in self.responses("GET", "GET")])

    def test_abort(self):
        """An exchange that is aborted after the switch takes the connection with it."""
        protocol = Recorder()
        self.switch(protocol)
        self.exchange.fail(500, "too late")
        self.assertTrue(self.client.aborted)
        self.assertEqual(1, len(protocol.ended_with))

    def test_over_a_stream(self):
        """All this works on a stream of the tunnel."""
        near, far = FakeStream.pair()
        user = Recorder()
        far.attach(user)
        near.attach(self.server.factory.buildProtocol(None))
        protocol = Recorder()
        self.handler.answer = lambda exchange: exchange.switch(101, b"", self.FIELDS, protocol)
        far.write(request(b"/exec", *self.UPGRADE, body=b"early"))
        protocol.transport.write(b"raw")
        far.loseWriteConnection()
        self.assertEqual((b"early", 1), (protocol.received, protocol.read_ended))
        self.assertTrue(user.received.endswith(b"raw"))


class DrainTests(ServerTestCase):
    """Ending a server softly."""

    def test_drain(self):
        """Idle connections are closed, running exchanges get their answers, and then it is over."""
        self.handler.answer = hello
        self.send(request())
        self.handler.answer = None
        busy = self.server.connect()
        fresh = self.server.connect()
        busy.receive(request())
        drained = self.server.factory.drain()
        settle(self.clock, self.client, busy, fresh)
        self.assertTrue(self.client.write_ended)
        self.assertTrue(fresh.write_ended)
        self.assertFalse(busy.write_ended)
        hello(self.exchange)
        settle(self.clock, busy)
        self.assertEqual(b"close", responses(busy.sent, "GET")[0][1][b"connection"])
        self.assertNoResult(drained)
        for client in (self.client, busy, fresh):
            client.receive_end()
        settle(self.clock, self.client, busy, fresh)
        self.successResultOf(drained)

    def test_nothing_to_drain(self):
        """Without connections it is over at once."""
        self.client.receive_end()
        self.settle()
        self.successResultOf(self.server.factory.drain())

    def test_close(self):
        """Closing aborts everything and leaves no call behind."""
        self.send(request())
        drained = self.server.factory.drain()
        self.server.factory.close()
        self.assertTrue(self.client.aborted)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(1, len(self.handler.ends))
        self.successResultOf(drained)
