"""Forwarding: clients that disconnect, origins that fail, and retries."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost

from tests.fakes import MemoryConnection
from tests.http.relaying import CHUNKED, OK, SWITCHING, UPGRADE, GivenForwarding, RelayTestCase
from tests.http.support import request, settle
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.exchange_wrapper import ExchangeWrapper
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import ConnectionPool, PoolSettings
from yurttunnel.http.relay import (
    ForwardedRequest,
)


class ClientLeavesTests(RelayTestCase):
    """A client that disconnects."""

    def test_while_connecting(self):
        """A client that disconnects while connecting cancels the connection attempt."""
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
        """A truncated request body aborts the connection to the origin."""
        self.send_slowly(request(b"/", CHUNKED, method=b"POST", body=b"5\r\nab"))
        self.client.receive_end()
        self.assertTrue(self.origin.aborted)
        self.assertFalse(self.origin.sent.endswith(b"0\r\n\r\n"))

    def test_malformed_body(self):
        """A malformed request body does, too, and the client gets an error."""
        self.send_slowly(request(b"/", CHUNKED, method=b"POST", body=b"2\r\n"))
        self.send(b"abc\r\n")
        self.assertEqual(400, self.responses("POST", closed=True)[0][0])
        self.assertTrue(self.origin.aborted)

    def test_answered_by_somebody_else(self):
        """An exchange that is answered elsewhere releases the origin."""
        self.send(request())
        self.server.handler.exchange.fail(403, "no longer allowed")
        self.assertTrue(self.origin.aborted)
        self.assert_refused(403, b"no longer allowed")

    def test_before_the_start(self):
        """For an exchange that has ended already no connection is acquired."""
        self.server.handler.answer = None
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        self.forward(self.server.handler.exchange)
        self.assertEqual([], self.attempts)


class OriginFailsTests(RelayTestCase):
    """An origin that fails."""

    def test_cannot_be_connected(self):
        """The caller provides the message about a failed connection."""
        self.instant = False
        self.send(request())
        self.attempts[0].errback(ConnectError())
        self.assert_refused(502, b"edge-1 cannot be reached: ConnectError")
        self.assertEqual([None], self.ends)

    def test_pool_is_busy(self):
        """Too many requests result in 503."""
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
        """A connection that has ended when it is acquired results in 502."""
        self.instant = False
        self.send(request())
        self.attempts[0].errback(ExchangeFailed("the connection was closed at once"))
        self.assert_refused(502, b"the kubelet of edge-1: the connection was closed at once")

    def test_closes_without_an_answer(self):
        """A new connection that is closed results in 502, without a retry."""
        self.send(request())
        self.origin.receive_end()
        self.assert_refused(502, b"the kubelet of edge-1: the connection was closed before")
        self.assertEqual(1, len(self.attempts))

    def test_nonsense(self):
        """An invalid response results in 502."""
        self.send(request())
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")
        self.assert_refused(502, b"the kubelet of edge-1: the response is invalid")
        self.assertTrue(self.origin.aborted)

    def test_unasked_switch(self):
        """A 101 without a requested upgrade results in 502, too."""
        self.send(request())
        self.answer(SWITCHING)
        self.assert_refused(502, b"no upgrade was requested")

    def test_never_answers(self):
        """An origin that does not respond in time results in 504."""
        self.send(request())
        self.clock.advance(29)
        self.settle()
        self.assertEqual(b"", self.client.sent)
        self.clock.advance(1)
        self.assert_refused(504, b"the kubelet of edge-1: no response within 30 seconds")
        self.assertTrue(self.origin.aborted)

    def test_time_begins_with_the_complete_request(self):
        """The time of the upload and of the response body does not count."""
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
        """Repeated interim responses do not extend the timeout."""
        self.send(request())
        for _ in range(2):
            self.clock.advance(14)
            self.answer(b"HTTP/1.1 102 Processing\r\n\r\n")
        self.clock.advance(2)
        self.assertEqual([102, 102, 504], [a[0] for a in self.responses()])

    def test_endless_interim_responses(self):
        """An origin that sends only interim responses is aborted; a few of them are forwarded."""
        self.send(request())
        while not self.origin.closed_with:
            self.origin.receive(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
        self.assertEqual([103] * 16 + [502], [a[0] for a in self.responses()])

    def test_linger(self):
        """A request with ``patient`` has no response timeout."""
        self.long_running = True
        self.send(request())
        self.clock.advance(10_000)
        self.answer(OK)
        self.assertEqual(200, self.responses()[0][0])

    def test_truncated(self):
        """A truncated response is truncated for the client, too."""
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
        """A response during an upload is forwarded; both connections are then closed."""
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
        """A response that begins during an upload does not stop the upload."""
        self.send_slowly(request(b"/", b"Content-Length: 4", method=b"PUT", body=b"ab"))
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nAB")
        self.send(b"cd")
        self.answer(b"CD")
        self.assertTrue(self.origin.sent.endswith(b"abcd"))
        self.assertEqual(b"ABCD", self.responses("PUT")[0][2])
        self.assertEqual(1, self.pool.statistics.idle)

    def test_connection_that_is_closed_already(self):
        """A connection that is closed already results in 502."""

        def acquire(**how):
            connection = ClientConnection(self.clock)
            MemoryConnection(self.clock).open(connection).break_off(ConnectionLost())
            return succeed(connection)

        self.server.handler.answer = lambda exchange: GivenForwarding(
            self.relay,
            exchange,
            acquire,
            ForwardedRequest(b"GET", b"/", exchange.head.fields),
            lambda failure: (500, ""),
        ).begin()
        self.send(request())
        self.assert_refused(502, b"the origin: the connection is closed")

    def test_connection_that_comes_too_late(self):
        """A connection that arrives although it was cancelled is closed."""
        connection = ClientConnection(self.clock)
        origin = MemoryConnection(self.clock).open(connection)
        self.server.handler.answer = lambda exchange: GivenForwarding(
            self.relay,
            exchange,
            lambda **how: Deferred(lambda canceled: canceled.callback(connection)),
            ForwardedRequest(b"GET", b"/", exchange.head.fields),
            lambda failure: (500, ""),
        ).begin()
        self.send(request())
        self.client.break_off(ConnectionLost())
        settle(self.clock, origin)
        self.assertEqual((b"", ConnectionDone), (origin.sent, type(origin.closed_with)))

    def test_defect_in_the_description(self):
        """A failure of ``describe`` is a defect, and still gets a response."""
        self.instant = False
        self.server.handler.answer = lambda exchange: GivenForwarding(
            self.relay,
            exchange,
            lambda **how: self.pool.acquire("node", **how),
            ForwardedRequest(b"GET", b"/", []),
            lambda failure: 1 / 0,
        ).begin()
        self.send(request())
        self.attempts[0].errback(ConnectError())
        self.assertEqual(500, self.responses()[0][0])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_defect(self):
        """An invalid request is a defect of the caller, and uses up no connection."""
        self.server.handler.answer = lambda exchange: GivenForwarding(
            self.relay,
            exchange,
            lambda **how: self.pool.acquire("node", **how),
            ForwardedRequest(b"GET", b"/ bad", []),
            lambda failure: (502, ""),
        ).begin()
        self.send(request())
        self.assertEqual(500, self.responses()[0][0])
        self.assertEqual(0, self.pool.statistics.in_use)
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))

    def test_defect_in_the_answer(self):
        """An exception in a middleware is a defect, and results in 500."""

        class Broken(ExchangeWrapper):
            def respond_from(self, status, fields, source, reason=b""):
                raise ZeroDivisionError

        self.server.handler.answer = lambda exchange: self.forward(Broken(exchange))
        self.send(request())
        self.answer(OK)
        self.assertEqual(500, self.responses()[0][0])
        self.assertEqual((True, 0), (self.origin.aborted, self.pool.statistics.in_use))
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))


class RetryTests(RelayTestCase):
    """When a request is retried."""

    def reuse(self):
        """Use a connection that is then kept."""
        self.send(request(b"/first"))
        self.answer(OK)
        self.assertEqual(1, self.pool.statistics.idle)

    def test_old_connection(self):
        """A safe request on a reused connection that is closed is retried on a new one."""
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
        """A request is not retried twice."""
        self.reuse()
        self.send(request())
        self.origin.receive_end()
        self.settle()
        self.origin.receive_end()
        self.assertEqual([200, 502], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(2, len(self.origins))

    def test_new_connection_every_time(self):
        """The retry does not use another old connection."""
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
        """A request is not retried after one byte of a response."""
        self.reuse()
        self.send(request())
        self.answer(b"H")
        self.origin.receive_end()
        self.assertEqual([200, 502], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(1, len(self.origins))

    def test_unsafe_methods(self):
        """A request with an unsafe method is not retried."""
        for method in (b"POST", b"PUT", b"DELETE", b"PATCH"):
            self.client = self.server.connect()
            self.reuse()
            before = len(self.origins)
            self.send(request(method=method))
            self.origin.receive_end()
            self.assertEqual(502, self.responses("GET", method.decode())[-1][0])
            self.assertEqual(before, len(self.origins))

    def test_upgrades(self):
        """An upgrade is not retried: over WebSocket, GET runs a command."""
        self.reuse()
        self.send(request(b"/exec/default/web/nginx?command=reboot", *UPGRADE))
        self.assertIn(b"/exec/", self.origin.sent)
        self.origin.break_off(ConnectionLost("reset"))
        self.settle()
        self.assertEqual([200, 502], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(1, len(self.origins))

    def test_with_a_body(self):
        """A request with a body is not retried, even with a safe method."""
        self.reuse()
        self.send(request(b"/", b"Content-Length: 2", body=b"ab"))
        self.origin.receive_end()
        self.assertEqual([200, 502], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(1, len(self.origins))

    def test_after_the_deadline(self):
        """A request is not retried after the response timeout."""
        self.reuse()
        self.send(request())
        self.clock.advance(30)
        self.assertEqual([200, 504], [a[0] for a in self.responses("GET", "GET")])
        self.assertEqual(1, len(self.origins))

    def test_deadline_of_the_second(self):
        """The retry has its own timeout."""
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
        """A request is not retried for a client that has disconnected."""
        self.reuse()
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        self.settle()
        self.assertEqual(1, len(self.origins))
