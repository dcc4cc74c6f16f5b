"""The server: exchanges, framing, rejection of requests, and draining."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
)
from zope.interface.verify import verifyObject

from tests.http.serving import CHUNKED, CLOSE, ServerTestCase, hello
from tests.http.support import (
    Sink,
    request,
    responses,
    settle,
)
from tests.tunnel.memory import Producer, User
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import ExchangeFailed, IExchange
from yurttunnel.http.server import ServerSettings
from yurttunnel.http.server_connection import MAX_DROPPED


class ExchangeTests(ServerTestCase):
    """Requests and responses on a keep-alive connection."""

    def test_interfaces(self):
        """Exchanges and connections provide their interfaces."""
        self.send(request())
        self.assertTrue(verifyObject(IExchange, self.exchange))
        self.assertTrue(verifyObject(IHalfCloseableProtocol, self.client.protocol))

    def test_head(self):
        """A handler gets the request as it was sent, and the client's address."""
        self.send(request(b"/a?b", b"X-A: 1", method=b"DELETE"))
        exchange = self.exchange
        head = exchange.head
        self.assertEqual((b"DELETE", b"/a?b", "1.1"), (head.method, head.target, head.version))
        self.assertEqual([(b"Host", b"node"), (b"X-A", b"1")], head.fields)
        self.assertFalse(exchange.secure)
        self.assertIs(self.client, exchange.transport)
        self.assertFalse(exchange.has_body)

    def test_keep_alive(self):
        """One connection serves several exchanges, one after the other."""
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
        """A complete response is sent in one write."""
        self.handler.answer = hello
        self.send(request())
        self.assertEqual(1, len(self.client.segments))

    def test_properties_of_an_exchange(self):
        """Status, sent bytes and whether the response has begun are available for logs."""
        self.send(request())
        exchange = self.exchange
        self.assertEqual((False, 0, 0), (exchange.head_sent, exchange.status, exchange.bytes_sent))
        exchange.send_head(404)
        exchange.write(b"12345")
        exchange.write(b"")
        self.assertEqual((True, 404, 5), (exchange.head_sent, exchange.status, exchange.bytes_sent))

    def test_head_cut_anywhere(self):
        """A head may arrive in pieces of any size."""
        self.handler.answer = hello
        for byte in request(b"/slow"):
            self.client.receive(bytes([byte]))
        self.assertEqual(b"/slow", self.responses()[0][1][b"x-target"])

    def test_usual_reason(self):
        """A response without a reason gets the standard phrase."""
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
        """An invalid response is rejected, and a valid one can still be sent."""
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

    def test_stream_after_an_unsafe_response(self):
        """Nothing of a rejected response is left: the valid one is sent unchanged."""
        self.send(request())
        with self.assertRaises(ValueError):
            self.exchange.respond(200, [(b"A", b"b\r\nC: d")], b"refused")
        self.exchange.send_head(200)
        self.exchange.write(b"line")
        self.settle()
        self.assertTrue(self.client.sent.endswith(b"line\r\n"))

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
        """A late callback is called at once; several are called in order."""
        events = []
        self.send(request())
        self.exchange.on_end(lambda error: events.append(("first", error)))
        self.exchange.on_end(lambda error: events.append(("second", error)))
        self.exchange.respond(200)
        self.exchange.on_end(lambda error: events.append(("late", error)))
        self.assertEqual([("first", None), ("second", None), ("late", None)], events)

    def test_defect_in_a_callback(self):
        """A callback that raises is logged, and the others are called."""
        events = []
        self.send(request())
        self.exchange.on_end(lambda error: 1 / 0)
        self.exchange.on_end(events.append)
        self.exchange.respond(200)
        self.assertEqual([None], events)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_defect_in_the_handler(self):
        """A handler that raises is logged, and the client gets 500."""
        self.handler.answer = lambda exchange: 1 / 0
        self.send(request())
        self.assertEqual(500, self.responses()[0][0])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_defect_after_the_response_has_begun(self):
        """A handler that raises after the response has begun aborts the connection."""

        def answer(exchange):
            exchange.send_head(200)
            raise ZeroDivisionError

        self.handler.answer = answer
        self.send(request())
        self.assertTrue(self.client.aborted)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_failures_for_people(self):
        """An error is sent in a format that the client reads, and the connection continues."""
        self.handler.answer = lambda exchange: exchange.fail(503, "edge-1 is not connected")
        self.send(request(b"/", b"Accept: application/json, */*"))
        self.send(request())
        (status, fields, body, _), (_, _, text, _) = self.responses("GET", "GET")
        self.assertEqual((503, b"application/json"), (status, fields[b"content-type"]))
        self.assertIn(b'"kind": "Status"', body)
        self.assertEqual(b"edge-1 is not connected\n", text)

    def test_failure_after_the_response_has_begun(self):
        """A response that has begun cannot be replaced: the connection is aborted."""
        self.send(request())
        self.exchange.send_head(200)
        self.exchange.fail(500, "too late")
        self.assertTrue(self.client.aborted)
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)

    def test_abort(self):
        """An aborted exchange ends with an error, and the client sees an incomplete response."""
        self.send(request())
        self.exchange.abort()
        self.assertTrue(self.client.aborted)
        self.assertIn("aborted", str(self.handler.ends[0][1]))
        self.assertEqual(1, len(self.handler.ends))

    def test_abort_behind_a_response(self):
        """A client that sends requests ahead receives all of the response before, unless only a
        reset shows that the aborted one is incomplete.
        """
        for version, is_reset in ((b"1.1", False), (b"1.0", True)):
            client = self.server.connect()
            client.receive(request())
            client.receive(request(version=version))
            hello(self.exchange)
            self.exchange.send_head(200)
            self.exchange.write(b"half")
            self.exchange.abort()
            settle(self.clock, client)
            self.assertEqual((is_reset, not is_reset), (client.aborted, client.write_ended))
            self.clock.pump([1] * 30)
            self.assertEqual(is_reset, client.aborted)

    def test_wrong_length(self):
        """A response that is longer or shorter than announced is a defect, and aborted."""
        for body in (b"123", b"1"):
            client = self.server.connect()
            client.receive(request())
            self.exchange.send_head(200, [(b"Content-Length", b"2")])
            self.exchange.write(body)
            self.exchange.finish()
            self.assertTrue(client.aborted)
            self.assertNotIn(b"123", client.sent)


class FramingTests(ServerTestCase):
    """The framing of responses."""

    def answer(self, sent, *fields):
        """Respond to a request in two pieces."""
        self.send(sent)
        self.exchange.send_head(200, fields)
        self.exchange.write(b"one ")
        self.exchange.write(b"two")
        self.exchange.finish([(b"Server-Timing", b"t")])
        self.settle()

    def test_length(self):
        """With a Content-Length the body is sent unchanged."""
        self.answer(request(), (b"Content-Length", b"7"))
        self.assertTrue(self.client.sent.endswith(b"\r\n\r\none two"))
        self.assertNotIn(b"Transfer-Encoding", self.client.sent)

    def test_chunks_and_trailers(self):
        """Without a Content-Length the body is chunked, and trailers follow."""
        self.answer(request())
        ((_, _, body, trailers),) = self.responses()
        self.assertEqual((b"one two", {b"server-timing": b"t"}), (body, trailers))
        self.assertFalse(self.client.write_ended)

    def test_old_client(self):
        """For an HTTP/1.0 client the body ends with the connection."""
        self.answer(request(version=b"1.0", target=b"/"))
        self.assertTrue(self.client.sent.endswith(b"Connection: close\r\n\r\none two"))
        self.assertNotIn(b"Transfer-Encoding", self.client.sent)
        self.assertTrue(self.client.write_ended)

    def test_old_client_with_keep_alive(self):
        """For an HTTP/1.0 client with keep-alive the connection is kept if the length is known."""
        self.answer(
            request(b"/", b"Connection: keep-alive", version=b"1.0"), (b"Content-Length", b"7")
        )
        self.assertIn(b"Connection: keep-alive\r\n", self.client.sent)
        self.handler.answer = hello
        self.send(request())
        self.assertEqual(2, len(self.responses("GET", "GET")))

    def test_head(self):
        """The response to HEAD has the length of the body, but not the body."""
        self.handler.answer = hello
        self.send(request(method=b"HEAD"))
        self.send(request())
        head, get = self.responses("HEAD", "GET")
        self.assertEqual((b"5", b""), (head[1][b"content-length"], head[2]))
        self.assertEqual(b"hello", get[2])

    def test_no_content(self):
        """204 has neither a body nor a length, whatever is passed; 304 may have a length."""
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
        """Interim responses precede the final one; HTTP/1.0 clients get none."""

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


class PipeliningTests(ServerTestCase):
    """Requests that arrive before the previous one is answered."""

    def test_order(self):
        """Requests are passed to the handler one by one, so that no response overtakes another."""
        self.send(request(b"/1") + request(b"/2") + request(b"/3"))
        for number in (1, 2, 3):
            self.assertEqual(number, len(self.handler.exchanges))
            hello(self.exchange)
        answers = self.responses("GET", "GET", "GET")
        self.assertEqual([b"/1", b"/2", b"/3"], [answer[1][b"x-target"] for answer in answers])

    def test_one_read_is_held(self):
        """While a request is not answered, one more read is held."""
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
        """Thousands in one read are served without recursion, at once or later."""
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
        """A client that sends requests and does not receive responses is not read from."""
        self.handler.answer = lambda exchange: exchange.respond(200, [], bytes(30_000))
        for _ in range(100):
            self.client.receive(request())
        self.assertLess(len(self.handler.exchanges), 5)
        self.assertFalse(self.client.reading)
        self.settle()
        self.assertEqual(100, len(self.handler.exchanges))
        self.assertTrue(self.client.reading)

    def test_close_in_between(self):
        """Data after a request with ``Connection: close`` is dropped."""
        self.handler.answer = hello
        self.send(request(b"/1", CLOSE) + request(b"/2"))
        self.assertEqual(1, len(self.handler.exchanges))
        self.assertEqual(b"close", self.responses()[0][1][b"connection"])


class RefusalTests(ServerTestCase):
    """Heads that are rejected."""

    settings = ServerSettings(limits=HeadLimits(max_bytes=1000, max_fields=10))

    def refused(self, sent):
        """Send data; return the status with which it is rejected."""
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
        """Requests that a handler rejects are not counted here."""
        self.handler.answer = lambda exchange: exchange.fail(400, "no")
        self.send(request())
        self.assertEqual({}, self.server.factory.refusals)

    def test_json(self):
        """A client whose head was parsed gets an error in a format that it reads."""
        self.send(request(b"/", b"Accept: application/json", b"Expect: a-miracle"))
        self.assertIn(b'"kind": "Status"', self.client.sent)

    def test_head(self):
        """The response to HEAD has no body, whatever rejects the request."""
        self.send(request(b"/", b"Expect: a-miracle", method=b"HEAD"))
        self.assertEqual(417, self.responses("HEAD", closed=True)[0][0])
        self.client = self.server.connect()
        self.handler.answer = lambda exchange: exchange.refuse(403, "no")
        self.send(request(method=b"HEAD"))
        self.assertEqual(403, self.responses("HEAD", closed=True)[0][0])
        self.assertEqual(403, self.handler.statuses[-1], "what logs and metrics see")

    def test_after_a_good_request(self):
        """An invalid head after a valid request is rejected in order."""
        self.send(request() + b"nonsense\r\n\r\n")
        self.assertEqual(b"", self.client.sent)
        hello(self.exchange)
        first, second = self.responses("GET", "GET", closed=True)
        self.assertEqual((200, 400), (first[0], second[0]))

    def test_the_rest_is_dropped(self):
        """A rejected client may finish sending, up to a limit, so that it reads its response."""
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
        """The connection of a rejected client that closes ends at once."""
        self.send(b"nonsense\r\n\r\n")
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.assertEqual(set(), self.server.factory.connections)


class DrainTests(ServerTestCase):
    """Graceful shutdown of a server."""

    def test_drain(self):
        """Idle connections are closed, exchanges are completed, and then the drain is complete."""
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

    def test_an_unread_response(self):
        """A client has the usual time to receive a response, though no exchange is left."""
        self.handler.answer = lambda exchange: exchange.respond(200, [], bytes(300_000))
        self.client.receive(request())
        self.server.factory.drain()
        self.read_nothing(79.75)
        self.assertFalse(self.client.aborted)
        self.read_nothing(0.5)
        self.assertTrue(self.client.aborted)

    def test_nothing_to_drain(self):
        """Without connections a drain is complete at once."""
        self.client.receive_end()
        self.settle()
        self.successResultOf(self.server.factory.drain())

    def test_close(self):
        """Closing aborts everything and leaves no delayed call."""
        self.send(request())
        drained = self.server.factory.drain()
        self.server.factory.close()
        self.assertTrue(self.client.aborted)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(1, len(self.handler.ends))
        self.successResultOf(drained)
