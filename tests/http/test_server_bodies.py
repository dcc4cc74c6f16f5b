"""The server: request bodies, and slow receivers of responses."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from types import SimpleNamespace

from twisted.internet.error import ConnectionLost
from twisted.trial.unittest import SynchronousTestCase

from tests.http.serving import CHUNKED, CLOSE, ServerTestCase, hello
from tests.http.support import (
    Sink,
    request,
    responses,
)
from tests.tunnel.memory import Producer
from yurttunnel.http import server_connection
from yurttunnel.http.connection import all_acknowledged
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.request_body import BodyBuffer, BodyTooLarge, read_body


class RequestBodyTests(ServerTestCase):
    """Bodies of requests."""

    def test_length(self):
        """A body of known length is delivered in pieces as they arrive."""
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
        """A client that ends its direction after the body still gets its response."""
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
        """Chunks are decoded, and trailers reported."""
        body = b"3\r\nabc\r\n0\r\nX-T: v\r\n\r\n"
        self.send(request(b"/", CHUNKED, method=b"POST", body=body))
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.assertEqual((b"abc", [(b"X-T", b"v")]), (sink.body, sink.trailers))

    def test_no_body(self):
        """Without a body the sink is finished at once."""
        self.send(request())
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.assertEqual((b"", []), (sink.body, sink.trailers))
        with self.assertRaises(RuntimeError):
            self.exchange.deliver_body(sink)

    def test_paused_until_read(self):
        """Only one read is held of a body without a consumer."""
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
        """No more of a paused body is read, until it is resumed."""
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
        """A body whose last piece arrives as it is paused leaves the connection readable."""
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
        """A connection is kept if the body was read, and the next request follows."""
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
        """A body that does not match its framing is answered with 400, and the exchange fails."""
        self.send(request(b"/", CHUNKED, method=b"POST", body=b"0x3\r\nabc\r\n0\r\n\r\n"))
        sink = Sink()
        self.exchange.deliver_body(sink)
        ((status, fields, _, _),) = self.responses(closed=True)
        self.assertEqual((400, b"close"), (status, fields[b"connection"]))
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)
        self.assertEqual([400], self.handler.statuses)
        self.assertFalse(sink.finished)

    def test_malformed_body_after_the_response_has_begun(self):
        """A malformed body after the response has begun aborts the connection."""
        self.send(request(b"/", CHUNKED, method=b"POST"))
        self.exchange.deliver_body(Sink())
        self.exchange.send_head(200)
        self.send(b"zz\r\n")
        self.assertTrue(self.client.aborted)
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)
        self.assertEqual([200], self.handler.statuses)

    def test_overdue_body(self):
        """A body below the minimum rate is answered with 408, however steadily it arrives."""
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
        """The timeout does not apply to a body whose consumer has paused it."""
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
        """Start reading the body of a request."""
        self.send(request(b"/", *fields, method=b"POST", body=body, version=version))
        return read_body(self.exchange, 10)

    def test_whole(self):
        """The pieces of a body are joined."""
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
        """A body that is announced as too large is not read."""
        reading = self.read(b"Content-Length: 11", b"Expect: 100-continue")
        error = self.failureResultOf(reading, BodyTooLarge).value
        self.assertEqual(b"", self.client.sent)
        self.exchange.fail(error.status, str(error))
        status, _, body, _ = self.responses(closed=True)[0]
        self.assertEqual((413, b"the request body is longer than 10 bytes\n"), (status, body))

    def test_too_large(self):
        """A body of unknown length fails once it is too large."""
        reading = self.read(CHUNKED, body=b"a\r\n0123456789\r\n")
        self.assertNoResult(reading)
        self.send(b"1\r\nx\r\n")
        self.failureResultOf(reading, BodyTooLarge)

    def test_client_leaves(self):
        """``read_body`` fails if the client disconnects before the end."""
        reading = self.read(b"Content-Length: 10", body=b"0")
        self.client.receive_end()
        self.failureResultOf(reading, ExchangeFailed)

    def test_answered_before(self):
        """``read_body`` fails if the request is answered before the end."""
        reading = self.read(b"Content-Length: 10", body=b"0")
        self.exchange.respond(200)
        self.failureResultOf(reading, ExchangeFailed)

    def test_expectation(self):
        """A client that expects ``100 Continue`` gets it, except with HTTP/1.0."""
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


class BufferMemoryTests(ServerTestCase):
    """The memory for buffered bodies."""

    def taken(self, write):
        """Return the bytes that 16 KiB use, written in small pieces."""
        data = bytes(range(256)) * 64
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, len(data), 2):
            write(data[start : start + 2])
        return tracemalloc.get_traced_memory()[0] - before

    def test_beginning(self):
        """The start of a body uses little more than its bytes, whatever the pieces are."""
        self.assertLess(self.taken(BodyBuffer().write), 32 * 1024)

    def test_whole_body(self):
        """A body that is read completely uses little more than its bytes, too."""
        self.send(request(b"/", b"Content-Length: 20000", method=b"POST"))
        reading = read_body(self.exchange, 20_000)
        self.assertLess(self.taken(self.client.receive), 32 * 1024)
        self.client.break_off(ConnectionLost())
        self.failureResultOf(reading, ExchangeFailed)


class BackPressureTests(ServerTestCase):
    """Responses that a client does not receive."""

    def test_producer(self):
        """A producer is paused while much data is buffered, and resumed when it is sent."""
        self.send(request())
        producer = Producer()
        self.exchange.registerProducer(producer, True)
        self.exchange.send_head(200)
        self.exchange.write(bytes(100_000))
        self.assertEqual(["pause"], producer.events)
        self.settle()
        self.assertEqual(["pause", "resume"], producer.events)
        self.exchange.unregisterProducer()
        self.exchange.write(bytes(100_000))
        self.assertEqual(["pause", "resume"], producer.events)

    def test_last_piece_that_waits(self):
        """A response whose last piece is not received delays the next request, too."""
        self.send(request(b"/1"))
        exchange, producer = self.exchange, Producer()
        producer.resumeProducing = lambda: (exchange.write(bytes(100_000)), exchange.finish())
        exchange.registerProducer(producer, True)
        exchange.send_head(200)
        exchange.write(bytes(100_000))
        self.client.receive(request(b"/2"))
        self.client.turn()
        self.assertEqual([(b"/1", None)], self.handler.ends)
        self.assertEqual(1, len(self.handler.exchanges))
        self.settle()
        self.assertEqual(2, len(self.handler.exchanges))

    def test_producer_registered_late(self):
        """A producer registered while much data is buffered is paused at once."""
        self.send(request())
        self.exchange.send_head(200)
        self.exchange.write(bytes(100_000))
        producer = Producer()
        self.exchange.registerProducer(producer, True)
        self.assertEqual(["pause"], producer.events)

    def test_one_push_producer(self):
        """There is one producer at a time, and it must be a push producer."""
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
        """A producer is stopped when the client disconnects."""
        self.send(request())
        producer = Producer()
        self.exchange.registerProducer(producer, True)
        self.client.break_off(ConnectionLost("reset"))
        self.assertEqual(["stop"], producer.events)

    def test_response_from_a_source(self):
        """A source fills a response, in one write with the head, and is paused as a producer."""
        self.send(request())

        class Source(Producer):
            has_body = True

            def take_whole(self):
                return None

            def deliver_body(self, sink):
                self.sink = sink
                sink.write(b"first ")

        source = Source()
        self.exchange.respond_from(200, [(b"A", b"b")], source, b"Fine")
        self.settle()
        self.assertEqual(1, len(self.client.segments))
        self.assertTrue(self.client.sent.endswith(b"6\r\nfirst \r\n"))
        source.sink.write(bytes(100_000))
        self.assertEqual(["pause"], source.events)
        source.sink.finish()
        status, fields, body, _ = self.responses()[0]
        self.assertEqual((200, b"b", 100_006), (status, fields[b"a"], len(body)))
        self.assertIn(b"200 Fine\r\n", self.client.sent)

    def test_response_from_a_whole_source(self):
        """A complete source is sent at once; a declared length has to match."""

        class Source(Producer):
            def take_whole(self):
                return b"hello"

        length = (b"content-length", b"5")
        for method, fields, body in (
            (b"GET", [length], b"hello"),
            (b"GET", [], b"hello"),
            (b"HEAD", [length], b""),
        ):
            self.client = self.server.connect()
            self.send(request(method=method))
            self.exchange.respond_from(200, fields, Source(), b"Fine")
            self.settle()
            ((status, found, content, _),) = self.responses(method.decode())
            self.assertEqual((200, b"5", body), (status, found[b"content-length"], content))
            self.assertEqual((1, len(body)), (len(self.client.segments), self.exchange.bytes_sent))
            self.assertTrue(self.client.sent.startswith(b"HTTP/1.1 200 Fine\r\n"))
        self.send(request())
        before = self.client.sent
        wrong = [(b"Content-Length", b"4")]
        self.assertRaises(ValueError, self.exchange.respond_from, 200, wrong, Source())
        self.assertEqual(before, self.client.sent)


class Answering(Sink):
    """Responds on the first piece of a body."""

    def __init__(self, exchange):
        super().__init__()
        self._exchange = exchange

    def write(self, data):
        """Respond."""
        hello(self._exchange)


class EarlyAnswerTests(ServerTestCase):
    """Responses before the request is complete."""

    def test_early_answer(self):
        """The response announces the close, and the rest of the request is dropped, in limits."""
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
        """A response that begins while the body is read keeps the connection."""
        self.send(request(b"/", b"Content-Length: 4", method=b"PUT", body=b"ab"))
        self.exchange.respond_from(200, [], self.exchange)
        self.send(b"cd")
        self.handler.answer = hello
        self.send(request())
        echoed, _ = self.responses("PUT", "GET")
        self.assertEqual(b"abcd", echoed[2])
        self.assertNotIn(b"connection", echoed[1])

    def test_answer_that_ends_while_reading(self):
        """A response that is complete before the body closes the connection anyway."""
        self.send(request(b"/", b"Content-Length: 4", method=b"PUT", body=b"ab"))
        self.exchange.deliver_body(Sink())
        self.exchange.send_head(200)
        self.exchange.finish()
        self.settle()
        self.assertTrue(self.client.write_ended)

    def test_unread_body(self):
        """A body without a consumer is dropped as well, even if it was complete."""
        body = b"x" * 10 + request(b"/smuggled")
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT", body=body))
        hello(self.exchange)
        self.assertEqual(b"close", self.responses()[0][1][b"connection"])
        self.assertEqual(1, len(self.handler.exchanges))

    def test_in_the_middle_of_a_piece(self):
        """A response within the delivery of the body ends the delivery."""
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT"))
        exchange = self.exchange
        sink = Sink()
        sink.write = lambda data: hello(exchange)
        exchange.deliver_body(sink)
        self.send(b"0123456789" + request(b"/2"))
        self.assertFalse(sink.finished)
        self.assertEqual(1, len(self.responses()))

    def test_within_the_last_piece(self):
        """A response within the delivery of the end keeps the connection."""
        for behind in (b"", request()):
            self.client = self.server.connect(self.kind)
            self.handler.answer = lambda exchange: exchange.deliver_body(Answering(exchange))
            self.send(request(b"/", b"Content-Length: 10", method=b"PUT"))
            self.handler.answer = hello
            self.send(b"0123456789" + behind)
            if not behind:
                self.send(request())
            self.assertEqual(2, len(self.responses("PUT", "GET")))

    def test_slow_taker(self):
        """A client that receives its last response slowly has more time than an idle one."""
        self.send(request(b"/", CLOSE))
        self.exchange.respond(200, [], bytes(1_000_000))
        for _ in range(40):
            self.clock.advance(1)
        self.assertIsNone(self.client.closed_with)
        for _ in range(41):
            self.clock.advance(1)
        self.assertTrue(self.client.aborted)

    def test_all_received(self):
        """A client that has received everything and does not close only has the linger time."""
        self.patch(server_connection, "all_acknowledged", lambda transport: True)
        self.send(request(b"/", CLOSE))
        self.exchange.respond(200, [], bytes(1_000_000))
        for _ in range(5):
            self.clock.advance(1)
        self.assertTrue(self.client.aborted)


class AllReceivedTests(SynchronousTestCase):
    """Whether a peer has received all sent data, according to the kernel."""

    def setUp(self):
        """Create a pair of sockets, one of them as a transport, and as one below TLS."""
        near, self.far = socket.socketpair()
        self.addCleanup(near.close)
        self.addCleanup(self.far.close)
        self.near = near
        self.plain = SimpleNamespace(getHandle=lambda: near)
        self.secure = SimpleNamespace(getPeerCertificate=None, transport=self.plain)

    def test_sent_and_read(self):
        """Data that the peer has not read is reported as not received."""
        for transport in (self.plain, self.secure):
            self.assertTrue(all_acknowledged(transport))
            self.near.send(b"x" * 1000)
            self.assertFalse(all_acknowledged(transport))
            self.far.recv(1000)
            self.assertTrue(all_acknowledged(transport))

    def test_reset(self):
        """No data is in flight on a connection that the peer has reset."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
        self.addCleanup(near.close)
        near.setblocking(False)
        try:
            # Until neither end has buffer space.
            while near.send(bytes(65536)):
                continue
        except BlockingIOError:
            transport = SimpleNamespace(getHandle=lambda: near)
        self.assertFalse(all_acknowledged(transport))
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        self.assertTrue(all_acknowledged(transport))

    def test_no_socket(self):
        """For a transport without a socket it is unknown whether the peer has all data."""
        self.assertFalse(all_acknowledged(SimpleNamespace()))
