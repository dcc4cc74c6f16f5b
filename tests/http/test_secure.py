"""HTTP over real TLS in memory: Twisted's and this project's, on both sides."""

from __future__ import annotations

import random

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import Handler, Receiver, begin, request, settle
from tests.tunnel.certificates import ClientTLS, ServerTLS
from tests.tunnel.memory import User
from tests.tunnel.test_connection import Link
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.http.upgrade import SplicedSide, join
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import with_transports

HOST = (b"Host", b"node")
UPGRADE = ((b"Connection", b"Upgrade"), (b"Upgrade", b"spdy/3.1"))


class Carrier:
    """Transfers data between two connections, but not their ends."""

    def __init__(self, clock, one, other):
        self.clock = clock
        self.ways = [(one, other), (other, one)]
        self.carried = [0, 0]

    def settle(self):
        """Transfer data until there is no more."""
        before = None
        while before != self.carried:
            before = list(self.carried)
            for number, (source, target) in enumerate(self.ways):
                settle(self.clock, source)
                data = source.sent[self.carried[number] :]
                if data:
                    self.carried[number] += len(data)
                    target.receive(data)


class TLSContract:
    """The requirements of both sides."""

    transports: str

    def setUp(self):
        """Connect both sides, and complete the handshake."""
        self.clock = MemoryReactorClock()
        self.reactor = with_transports(self.clock, self.transports)
        self.handler = Handler()
        self.factory = HTTPFactory(self.clock, self.handler, ServerSettings())
        self.addCleanup(self.factory.close)
        self.server_factory = tls.server_side(self.reactor, ServerTLS([b"http/1.1"]), self.factory)
        self.connection = ClientConnection(self.clock)
        client = self.client_side(self.connection)
        self.link = Link(self.clock, client, self.server_factory.buildProtocol(None))
        self.ready = self.connection.when_ready()
        self.link.settle()

    def client_side(self, protocol):
        """Return ``protocol`` with TLS below it."""
        factory = Factory.forProtocol(lambda: protocol)
        creator = ClientTLS([b"http/1.1"], "edge-1")
        return tls.client_side(self.reactor, creator, factory).buildProtocol(None)

    def ask(self, method=b"GET", *fields, **arguments):
        """Send a request."""
        receiver = Receiver()
        receiver.exchange = begin(
            self.connection, method, b"/", [HOST, *fields], receiver, **arguments
        )
        self.link.settle()
        return receiver

    def test_keep_alive(self):
        """The connection is ready after the handshake, and serves several exchanges."""
        self.assertIs(self.connection, self.successResultOf(self.ready))
        self.handler.answer = lambda exchange: exchange.respond(200, [], b"hello")
        for _ in range(3):
            receiver = self.ask()
            self.assertEqual((b"hello", [None]), (receiver.sink.body, receiver.ends))
        self.assertTrue(self.handler.exchange.secure)
        self.assertIsNotNone(self.handler.exchange.transport.getPeerCertificate())
        self.assertTrue(self.connection.reusable)

    def test_much_data(self):
        """Much data arrives completely in both directions, with back-pressure."""
        data = random.Random(3).randbytes(2_000_000)
        self.handler.answer = lambda exchange: (
            exchange.send_head(200),
            exchange.registerProducer(exchange, True),
            exchange.deliver_body(exchange),
        )
        receiver = self.ask(b"POST", has_body=True)
        for start in range(0, len(data), 100_000):
            receiver.exchange.write(data[start : start + 100_000])
            self.link.settle()
        receiver.exchange.finish()
        self.link.settle()
        self.assertEqual(([None], True), (receiver.ends, data == receiver.sink.body))

    def test_drain(self):
        """An idle connection is closed on both sides."""
        drained = self.factory.drain()
        self.link.settle()
        self.successResultOf(drained)
        self.assertTrue(self.connection.lost)

    def test_connection_close(self):
        """After ``Connection: close`` the response is complete, and both sides close."""
        self.handler.answer = lambda exchange: (
            drained.append(self.factory.drain()),
            exchange.respond(200, [], bytes(300_000)),
        )
        drained = []
        receiver = self.ask()
        self.assertEqual([None], receiver.ends)
        self.assertEqual(300_000, len(receiver.sink.body))
        self.assertTrue(self.connection.lost)
        self.successResultOf(drained[0])

    def test_cut_without_an_end(self):
        """A body that ends with the connection is incomplete without ``close_notify``."""
        self.handler.answer = lambda exchange: exchange.send_head(200)
        receiver = self.ask()
        self.handler.exchange.write(b"half")
        self.link.settle()
        self.link.cut()
        (error,) = receiver.ends
        self.assertIsInstance(error.__cause__, ConnectionLost)
        self.assertFalse(receiver.sink.finished)
        self.assertIsNotNone(self.handler.ends[0][1])

    def test_client_leaves(self):
        """A client that closes ends the exchange at once."""
        receiver = self.ask()
        self.connection.close()
        self.link.settle()
        self.assertIsNotNone(receiver.ends[0])
        self.assertIsNotNone(self.handler.ends[0][1])

    def test_bad_head(self):
        """An invalid head is answered, and the connection is closed on both sides."""
        self.connection.transport.write(b"nonsense\r\n\r\n")
        self.link.settle()
        self.clock.advance(5)
        self.link.settle()
        self.assertEqual(set(), self.factory.connections)

    def test_early_answer(self):
        """A client that is still sending gets the whole response."""
        self.handler.answer = lambda exchange: exchange.respond(413, [], b"too much")
        receiver = Receiver()
        receiver.exchange = begin(
            self.connection,
            b"PUT",
            b"/",
            [HOST, (b"Content-Length", b"1000000")],
            receiver,
            has_body=True,
        )
        receiver.exchange.write(bytes(100_000))
        self.link.settle()
        self.assertEqual((413, b"too much"), (receiver.head.status, receiver.sink.body))

    def test_upgrade(self):
        """An upgraded connection transfers data in both directions, beginning with early data."""
        near, far = User(), User()
        self.handler.answer = lambda exchange: (
            exchange.switch(101, b"", UPGRADE, far),
            far.transport.write(b"greeting"),
        )
        receiver = Receiver()
        receiver.response_received = lambda head: receiver.exchange.switch(near)
        receiver.exchange = begin(
            self.connection, b"POST", b"/", [HOST, *UPGRADE], receiver, upgrade=True
        )
        self.connection.transport.write(b"early")
        self.link.settle()
        self.assertEqual((b"greeting", b"early"), (near.received, far.received))
        near.transport.write(b"last")
        near.transport.loseConnection()
        self.link.settle()
        self.assertEqual(b"earlylast", far.received)
        self.assertEqual([None], [error for _, error in self.handler.ends])
        self.assertEqual([None], receiver.ends)

    def test_joined_side_that_was_paused(self):
        """A side that was paused for another that has ended notices its own peer's close."""
        closing = Deadlines(self.clock, 60, SplicedSide.close_overdue)
        self.addCleanup(closing.stop)
        origin = MemoryConnection(self.clock)

        def switch(exchange):
            client_side, origin_side = join(exchange.transport, origin, closing)
            exchange.switch(101, b"", UPGRADE, client_side)
            origin.open(origin_side)

        self.handler.answer = switch
        user = User()
        client = MemoryConnection(self.clock).open(self.client_side(user))
        server = MemoryConnection(self.clock).open(self.server_factory.buildProtocol(None))
        carrier = Carrier(self.clock, client, server)
        carrier.settle()
        user.transport.write(request(b"/exec", b"Connection: Upgrade", b"Upgrade: spdy/3.1"))
        carrier.settle()
        user.transport.write(bytes(200_000))
        carrier.settle()
        self.assertFalse(server.reading)
        origin.break_off(ConnectionDone())
        carrier.settle()
        self.assertEqual("lost", user.events[-1])
        self.assertIsNotNone(server.closed_with)
        self.assertEqual([None], [error for _, error in self.handler.ends])

    def test_silent_client(self):
        """A client without a handshake is disconnected in time."""
        silent = User()
        link = Link(self.clock, silent, self.server_factory.buildProtocol(None))
        link.settle()
        self.clock.advance(10)
        link.settle()
        self.clock.advance(5)
        link.settle()
        self.assertEqual(["made", "lost"], silent.events)
        self.assertEqual(1, len(self.factory.closing))


class TwistedTLSTests(TLSContract, SynchronousTestCase):
    """Twisted's TLS."""

    transports = "twisted"


class DirectTLSTests(TLSContract, SynchronousTestCase):
    """This project's TLS."""

    transports = "direct"
