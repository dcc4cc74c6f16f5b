"""The server: timeouts, limits of connections, and half-closed clients."""

from __future__ import annotations

import gc
import socket
import weakref

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.serving import ServerTestCase, hello
from tests.http.support import (
    Server,
    Sink,
    request,
    responses,
    settle,
)
from tests.tunnel.memory import User
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.server import ServerSettings


class DeadlineTests(ServerTestCase):
    """Slow clients."""

    def test_body_held_back(self):
        """A client that waits for a 100 has as much time as the handler takes to send it."""
        head = request(b"/", b"Content-Length: 5", b"Expect: 100-continue", method=b"PUT")
        self.send(head)
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.pass_time(150)
        self.assertEqual(b"", self.client.sent)
        self.exchange.send_informational(100)
        self.pass_time(130)
        self.assertIn(b" 408 ", self.client.sent)

    def test_time_for_a_body_that_was_held_back(self):
        """The timeout of such a body starts when the client gets a 100 or starts sending."""
        head = request(b"/", b"Content-Length: 50000", b"Expect: 100-continue", method=b"PUT")
        for goes_on in (
            lambda: self.exchange.send_informational(100),
            lambda: self.client.receive(b"body"),
        ):
            self.client = self.server.connect()
            self.send(head)
            self.exchange.deliver_body(Sink())
            self.pass_time(19.5)
            goes_on()
            self.pass_time(19.5)
            self.assertNotIn(b" 408 ", self.client.sent)
            self.pass_time(0.5)
            self.assertIn(b" 408 ", self.client.sent)

    def test_silent_client(self):
        """A connection on which nothing is received is closed without a response."""
        self.pass_time(10)
        self.assertEqual(b"", self.client.sent)
        self.assertTrue(self.client.write_ended)
        self.pass_time(5)
        self.assertIsNotNone(self.client.closed_with)
        self.assertEqual({}, self.server.factory.refusals)

    def test_slow_head(self):
        """A slow head is answered with 408, however steadily it arrives."""
        for byte in request(b"/long-enough-for-this")[:39]:
            self.client.receive(bytes([byte]))
            self.clock.advance(0.25)
            self.settle()
        self.assertEqual(b"", self.client.sent)
        self.clock.advance(0.25)
        self.assertEqual(408, self.responses(closed=True)[0][0])
        self.assertEqual({408: 1}, self.server.factory.refusals)

    def test_slow_second_head(self):
        """The timeout of the second head starts at its first byte."""
        self.handler.answer = hello
        self.send(request())
        self.pass_time(60)
        self.send(request()[:10])
        self.pass_time(9.75)
        self.assertEqual(1, len(self.responses()))
        self.pass_time(0.25)
        self.assertEqual([200, 408], [a[0] for a in self.responses("GET", "GET", closed=True)])

    def test_idle_connection(self):
        """A connection without a further request is closed without a response."""
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
        """A handler may take any time for its response."""
        self.send(request())
        self.pass_time(1000)
        hello(self.exchange)
        self.assertEqual(200, self.responses()[0][0])

    def test_no_timer_for_each_request(self):
        """However many requests arrive, the clock has only a few delayed calls."""
        self.handler.answer = hello
        for _ in range(100):
            self.send(request())
        self.assertLess(len(self.clock.getDelayedCalls()), 5)


class FullTests(SynchronousTestCase):
    """More connections than the limit: two, and two that may wait for the client to close."""

    def setUp(self):
        """Respond to requests at once, and record how often the limits apply."""
        self.server = Server(ServerSettings(max_connections=2))
        self.factory = self.server.factory
        self.server.handler.answer = hello
        self.clients = []
        self.events = []
        self.factory.on_full = lambda: self.events.append("full")
        self.addCleanup(self.factory.close)

    def connect(self, sent=b""):
        """Connect a client that sends something, a second after the previous one."""
        self.server.clock.advance(1)
        client = self.server.connect()
        self.clients.append(client)
        self.send(client, sent)
        return client

    def send(self, client, data):
        """Simulate data from a client."""
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
        """Return the statuses of its responses."""
        return [each[0] for each in responses(client.sent, *["GET"] * requests, closed=closed)]

    def test_idle(self):
        """Of idle clients the one with the oldest request is evicted."""
        first, second = (self.connect(request()) for _ in range(2))
        self.send(first, request())
        self.assertEqual([], self.events)
        third = self.connect(request())
        self.assertEqual([False, True], [first.write_ended, second.write_ended])
        self.assertEqual([200], self.statuses(third))
        self.connect()
        self.assertEqual([True, False], [first.write_ended, third.write_ended])
        self.assertEqual((["full"] * 2, {}), (self.events, self.factory.refusals))

    def test_an_unread_response(self):
        """An evicted client can receive the rest of its response, as after any close."""
        slow = self.server.connect()
        slow.receive(request())
        for _ in range(2):
            self.connect(request())
        self.assertEqual(b"", slow.sent)
        settle(self.server.clock, slow)
        self.assertEqual([200], self.statuses(slow, closed=True))

    def test_without_a_head(self):
        """Silent clients are evicted, and those that do not complete a first or later head."""
        silent, slow = self.connect(), self.connect(request())
        self.send(slow, b"GET /")
        idle = self.connect(request())
        self.assertEqual([True, False], [silent.write_ended, slow.write_ended])
        newest = self.connect()
        self.assertEqual([True, False], [slow.write_ended, idle.write_ended])
        self.send(newest, request())
        self.assertEqual([200], self.statuses(newest))
        self.assertEqual([200], self.statuses(idle))

    def test_the_longest_waiting(self):
        """The longest waiting client is evicted, for its first request or another."""
        idle, silent = self.connect(request()), self.connect()
        self.connect()
        self.assertEqual([True, False], [idle.write_ended, silent.write_ended])

    def test_requests_in_flight(self):
        """Requests in progress and streams are never evicted: a further client gets a 503."""
        asking = self.busy()
        upgraded = self.busy(b"Connection: Upgrade", b"Upgrade: spdy/3.1")
        exchange = self.server.handler.exchange
        exchange.switch(101, b"Switching Protocols", [(b"Upgrade", b"spdy/3.1")], User())
        for refused in [self.connect() for _ in range(2)]:
            self.assertEqual([503], self.statuses(refused, closed=True))
        self.assertEqual(({503: 2}, ["full"] * 2), (self.factory.refusals, self.events))
        self.assertEqual([False, False], [asking.aborted, upgraded.aborted])
        hello(self.server.handler.exchanges[0])
        settle(self.server.clock, asking)
        self.assertEqual([200], self.statuses(self.connect(request())))
        self.assertEqual([True, False], [asking.write_ended, upgraded.write_ended])

    def test_one_that_closes(self):
        """A closed connection frees its place, without an eviction."""
        first, second = self.busy(), self.busy()
        first.break_off(ConnectionLost())
        self.assertEqual([200], self.statuses(self.connect(request())))
        self.assertEqual([], self.events)
        self.assertFalse(second.aborted)

    def test_clients_that_do_not_close(self):
        """Clients with their last response take no place; of too many the oldest is aborted."""
        idle = self.connect(request())
        clients = [self.connect(request(b"/", b"Connection: close")) for _ in range(2)]
        clients.append(self.connect(b"nonsense\r\n\r\n"))
        self.assertEqual([True, False, False], [client.aborted for client in clients])
        self.assertEqual([[200], [200], [400]], [self.statuses(c, closed=True) for c in clients])
        self.assertFalse(idle.write_ended)
        self.assertEqual([], self.events)

    def test_the_end(self):
        """A drain does not wait for evicted clients, but for closing ones."""
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


class LongHeadTests(SynchronousTestCase):
    """Heads of 20,000 bytes, with a limit of six in total."""

    LONG = request(b"/", b"X: %b" % (b"x" * 19_950))

    def setUp(self):
        """Leave requests unanswered unless the test says otherwise."""
        limits, most = HeadLimits(max_bytes=50_000), 6 * len(self.LONG)
        self.server = Server(ServerSettings(limits=limits, max_long_heads=most))
        self.factory = self.server.factory
        self.addCleanup(self.factory.close)

    def connect(self, caller, sent):
        """Connect a caller that sends something in pieces."""
        client = self.server.connect()
        client.getPeer = lambda: IPv4Address("TCP", f"10.244.1.{caller}", 40000)
        for start in range(0, len(sent), 6000):
            client.receive(sent[start : start + 6000])
        settle(self.server.clock, client)
        return client

    def status(self, client):
        """Return the status of the response, 0 without one."""
        return int(client.sent[9:12] or 0)

    def test_unfinished(self):
        """A caller may use as many as remain free, and others find room; all these are served."""
        mine = [self.connect(1, self.LONG[:-1]) for _ in range(5)]
        others = [self.connect(caller, self.LONG[:-1]) for caller in (2, 3)]
        self.assertEqual([0, 0, 0, 503, 503], [self.status(client) for client in mine])
        self.server.handler.answer = hello
        for client in (*others, *mine[:3]):
            client.receive(self.LONG[-1:])
            settle(self.server.clock, client)
            self.assertEqual(200, self.status(client))
        self.assertEqual(({503: 2}, 0), (self.factory.refusals, self.factory.long_heads.used))

    def test_while_their_requests_are_in_flight(self):
        """A complete head counts as well, however many pieces it came in."""
        for connect in (self.connect, self.connect_at_once):
            under_way = [connect(1, self.LONG) for _ in range(3)]
            self.assertEqual(503, self.status(self.connect(1, self.LONG)))
            self.assertEqual(503, self.status(self.connect_at_once(1, self.LONG)))
            self.assertEqual([0, 0], [self.status(connect(caller, self.LONG)) for caller in (2, 3)])
            self.assertEqual([0, 0, 0], [self.status(client) for client in under_way])
            for exchange in self.server.handler.exchanges[-5:]:
                hello(exchange)
            self.assertEqual(0, self.factory.long_heads.used)

    def connect_at_once(self, caller, sent):
        """Connect a caller whose head arrives in one piece."""
        client = self.connect(caller, b"")
        client.receive(sent)
        settle(self.server.clock, client)
        return client

    def test_short_heads(self):
        """Short heads are served while there is no room for a long one, and after one."""
        self.server.handler.answer = hello
        first = self.connect(1, request() + self.LONG + request())
        self.server.handler.answer = None
        for caller in range(2, 20):
            self.connect(caller, self.LONG)
        taken = self.factory.long_heads.used
        self.assertGreaterEqual(taken, 80_000)
        self.assertEqual(503, self.status(self.connect(2, self.LONG)))
        self.server.handler.answer = hello
        first.receive(request())
        settle(self.server.clock, first)
        answers = responses(first.sent, *["GET"] * 4)
        self.assertEqual([200] * 4, [each[0] for each in answers])
        self.assertEqual(200, self.status(self.connect(1, request())))
        self.assertEqual(taken, self.factory.long_heads.used)

    def test_the_end_of_one(self):
        """However a request with a long head ends, its place is freed, and the head released."""
        ends = {
            "too late": lambda client: self.server.clock.advance(10),
            "bad": lambda client: client.receive(b"\0"),
            "too long": lambda client: client.receive(self.LONG * 2),
            "broken": lambda client: client.break_off(ConnectionLost()),
            "ended": lambda client: client.receive_end(),
        }
        for name, end in ends.items():
            client = self.connect(1, self.LONG[:-4])
            reader = weakref.ref(client.protocol._heads._reader)
            self.assertEqual(len(self.LONG) - 4, self.factory.long_heads.used)
            end(client)
            if client.closed_with is not None:
                del client
            gc.collect()
            self.assertEqual((0, None), (self.factory.long_heads.used, reader()), name)

    def test_a_stream_behind_one(self):
        """An upgraded connection holds the place until it ends."""
        upgrade = (b"Connection: Upgrade", b"Upgrade: spdy/3.1")
        client = self.connect(1, self.LONG[:-2] + b"\r\n".join([*upgrade, b"", b""]))
        self.server.handler.exchange.switch(101, b"", [(b"Upgrade", b"spdy/3.1")], User())
        self.assertGreater(self.factory.long_heads.used, 20_000)
        client.break_off(ConnectionLost())
        self.assertEqual(0, self.factory.long_heads.used)

    def test_what_comes_with_a_head_is_not_kept(self):
        """Data that arrives with a head is not retained by the connection once it was read."""
        self.server.handler.answer = lambda exchange: exchange.deliver_body(Sink())
        client = self.connect(1, b"")
        client.receive(request(b"/", b"Content-Length: 5", method=b"PUT", body=b"12345"))
        self.assertEqual(b"", client.protocol._heads.early)


class SocketConnection(MemoryConnection):
    """A connection with a real socket, whose peer is ``far``."""

    def __init__(self, reactor):
        super().__init__(reactor)
        self.near, self.far = socket.socketpair()

    def getHandle(self):
        """Return the socket of this end."""
        return self.near


class HalfCloseTests(ServerTestCase):
    """Clients that end their sending direction."""

    def test_behind_a_request(self):
        """A client that ends its direction after its request gets its response."""
        self.send(request())
        self.client.receive_end()
        self.pass_time(9)
        hello(self.exchange)
        self.assertEqual(b"close", self.responses()[0][1][b"connection"])
        self.assertIsInstance(self.client.closed_with, ConnectionDone)

    def test_behind_an_answer(self):
        """A half-closed client has the usual time to receive its response."""
        self.handler.answer = lambda exchange: exchange.respond(200, [], bytes(300_000))
        self.client.receive(request())
        self.client.receive_end()
        self.read_nothing(79.75)
        self.assertFalse(self.client.aborted)
        self.read_nothing(0.5)
        self.assertTrue(self.client.aborted)

    def test_for_good(self):
        """A half-closed client counts as disconnected after ten seconds."""
        self.send(request())
        self.client.receive_end()
        self.pass_time(10)
        self.assertTrue(self.client.aborted)
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)

    def test_behind_several_requests(self):
        """A client that ends its direction after several requests gets all responses."""
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
        """An incomplete head is dropped, also after another request."""
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
        """An end that is reported while data is held counts after that data."""
        self.send(request() + request()[:10])
        self.client.protocol.readConnectionLost()
        hello(self.exchange)
        self.settle()
        self.assertIsNotNone(self.client.closed_with)

    def test_in_a_body(self):
        """An incomplete body fails the exchange at once."""
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT", body=b"12"))
        sink = Sink()
        self.exchange.deliver_body(sink)
        self.settle()
        self.client.receive_end()
        self.assertIn("ended its request early", str(self.handler.ends[0][1]))
        self.assertTrue(self.client.aborted)
        self.assertFalse(sink.finished)

    def test_in_a_body_that_is_read_later(self):
        """An incomplete body that is read after the end has arrived fails the exchange, too."""
        self.send(request(b"/", b"Content-Length: 10", method=b"PUT"))
        self.client.receive_end()
        self.assertEqual([], self.handler.ends)
        self.exchange.deliver_body(Sink())
        self.assertIn("ended its request early", str(self.handler.ends[0][1]))

    def test_idle(self):
        """An idle connection is closed when its client ends its direction."""
        self.handler.answer = hello
        self.send(request())
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.assertEqual(set(), self.server.factory.connections)

    def test_client_breaks(self):
        """A client that disconnects fails the exchange at once."""
        self.send(request())
        self.client.break_off(ConnectionLost("reset"))
        error = self.handler.ends[0][1]
        self.assertIn("closed the connection", str(error))
        self.assertIsInstance(error.__cause__, ConnectionLost)

    def test_hung_up(self):
        """If the kernel reports that both directions have ended, the exchange fails at once."""
        client = self.server.connect(SocketConnection)
        self.addCleanup(client.near.close)
        client.receive(request())
        client.far.close()
        client.receive_end()
        self.assertEqual(1, len(self.handler.ends))


class UnreadEndTests(ServerTestCase):
    """A client that sends more than its request is not read from until it has its response."""

    kind = SocketConnection

    def setUp(self):
        """Connect, and send a request followed by the next one."""
        super().setUp()
        self.addCleanup(self.client.near.close)
        self.addCleanup(self.client.far.close)
        self.send(request(b"/1") + request(b"/2"))
        self.assertFalse(self.client.reading)

    def test_client_that_stays(self):
        """A client that stays connected is served however long its responses take."""
        for _ in range(2):
            self.pass_time(60)
            hello(self.exchange)
        self.assertEqual(2, len(self.responses("GET", "GET")))

    def test_client_that_has_left(self):
        """A disconnected client's request is aborted after twice the time of one that is read."""
        self.client.far.close()
        self.pass_time(10)
        self.assertEqual([], self.handler.ends)
        self.pass_time(10)
        [(target, error)] = self.handler.ends
        self.assertEqual((b"/1", True), (target, self.client.aborted))
        self.assertIn("the client has closed the connection", str(error))
        self.assertEqual(0, len(self.server.factory.unread))

    def test_client_that_is_resumed(self):
        """A client that is read again is not checked any more: its end is reported."""
        self.assertEqual(1, len(self.server.factory.unread))
        hello(self.exchange)
        self.settle()
        self.assertTrue(self.client.reading)
        self.assertEqual(b"/2", self.exchange.head.target)
        self.assertEqual(0, len(self.server.factory.unread))

    def test_client_that_only_ends_its_direction(self):
        """Each of its requests has the same time as one of a client that is read."""
        self.send(request(b"/3"))
        self.client.far.shutdown(socket.SHUT_WR)
        self.client.receive_end()
        for number in (b"/1", b"/2", b"/3"):
            self.pass_time(9)
            self.assertEqual(number, self.exchange.head.target)
            hello(self.exchange)
            self.settle()
        self.assertEqual(3, len(self.responses("GET", "GET", "GET")))
        self.assertEqual([None] * 3, [error for _, error in self.handler.ends])

    def test_body_that_is_held(self):
        """An incomplete request is not checked: its body may still be read."""
        client = self.server.connect(SocketConnection)
        self.addCleanup(client.near.close)
        client.receive(request(b"/", b"Content-Length: 2", method=b"PUT", body=b"12"))
        self.assertFalse(client.reading)
        client.far.shutdown(socket.SHUT_WR)
        self.addCleanup(client.far.close)
        self.pass_time(60)
        self.assertEqual([], self.handler.ends)

    def test_what_switches(self):
        """A connection that has been handed over is not checked."""
        self.client.far.close()
        self.exchange.switch(200, b"OK", [], User())
        self.pass_time(60)
        self.assertFalse(self.client.aborted)
        self.assertEqual(0, len(self.server.factory.unread))
