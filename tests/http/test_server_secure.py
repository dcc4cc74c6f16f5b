"""The server: TLS and its handshake."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IHandshakeListener,
)
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.http.serving import CLOSE, ServerTestCase, hello
from tests.http.support import (
    Handler,
    Receiver,
    SecureConnection,
    Server,
    begin,
    request,
    responses,
    settle,
)
from tests.tunnel.certificates import ClientTLS, ServerTLS
from tests.tunnel.memory import User
from tests.tunnel.test_connection import Link
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import with_transports


class SecureTests(ServerTestCase):
    """Exchanges over TLS."""

    kind = SecureConnection

    def test_secure(self):
        """An exchange reports that it came over TLS."""
        self.send(request())
        self.assertTrue(self.exchange.secure)

    def test_end_is_an_end(self):
        """A client that ends its direction has disconnected."""
        self.send(request())
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.handler.ends[0][1], ExchangeFailed)

    def test_close(self):
        """A connection is closed after its last response, and finally aborted."""
        self.handler.answer = hello
        self.send(request(b"/", CLOSE))
        self.assertEqual(200, self.responses()[0][0])
        self.assertIsNotNone(self.client.closed_with)

    def test_connect(self):
        """The protocol after a CONNECT gets the connection, which either end closes completely."""
        protocol = User()
        self.send(request(b"node:80", method=b"CONNECT", body=b"early"))
        self.exchange.switch(200, b"Connected", [], protocol)
        self.settle()
        protocol.transport.write(b"answer")
        self.settle()
        self.assertEqual(b"early", protocol.received)
        self.assertEqual(b"HTTP/1.1 200 Connected\r\n\r\nanswer", self.client.sent)
        protocol.transport.loseWriteConnection()
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)

    def test_peer_that_does_not_close(self):
        """A peer that never answers ``close_notify`` is aborted."""
        self.client.loseConnection = lambda: None
        self.send(b"nonsense\r\n\r\n")
        self.pass_time(5)
        self.assertTrue(self.client.aborted)


class HandshakeTests(SynchronousTestCase):
    """Connections in their TLS handshake."""

    def setUp(self):
        """Serve two connections and three concurrent handshakes."""
        self.server = Server(ServerSettings(max_connections=2, max_handshakes=3))
        self.server.handler.answer = hello
        self.factory = self.server.factory
        self.events = []
        self.factory.on_full = lambda: self.events.append("full")
        self.addCleanup(self.factory.close)

    def begin(self):
        """Connect a client with an incomplete handshake."""
        return SecureConnection(self.server.clock).open(self.factory.buildProtocol(None))

    def complete(self, client):
        """Complete the handshake, and send a request."""
        client.protocol.handshakeCompleted()
        client.receive(request())
        settle(self.server.clock, client)

    def status(self, client, **options):
        """Return the status of the only response."""
        return responses(client.sent, "GET", **options)[0][0]

    def test_interface(self):
        """A connection provides the interface for the end of the handshake."""
        self.assertTrue(verifyObject(IHandshakeListener, self.begin().protocol))

    def test_handshaken(self):
        """A connection reports whether its handshake is complete; without TLS there is none."""
        client = self.begin()
        self.assertFalse(client.protocol.handshaken)
        client.protocol.handshakeCompleted()
        self.assertTrue(client.protocol.handshaken)
        self.assertTrue(self.server.connect().protocol.handshaken)

    def test_handshakes_are_no_connections(self):
        """However many handshakes are pending, a client that completes its handshake is served."""
        for _ in range(3):
            self.begin()
        self.assertEqual(set(), self.factory.connections)
        for _ in range(2):
            client = self.begin()
            self.complete(client)
            self.assertEqual(200, self.status(client))
        self.assertEqual({}, self.factory.refusals)

    def test_too_many_connections(self):
        """A connection above the limit gets a 503 when its handshake is complete."""
        self.server.handler.answer = None
        for _ in range(2):
            self.complete(self.begin())
        client = self.begin()
        self.assertEqual([], self.events)
        self.complete(client)
        self.assertEqual(503, self.status(client, closed=True))
        self.assertEqual(({503: 1}, ["full"]), (self.factory.refusals, self.events))

    def test_who_makes_room(self):
        """A connection in its handshake does not count as a waiting one."""
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
        """A handshake above the limit evicts the oldest one, which is reported."""
        flood = [self.begin() for _ in range(3)]
        self.assertEqual([], self.events)
        flood += [self.begin() for _ in range(10)]
        self.assertEqual([True] * 10 + [False] * 3, [client.aborted for client in flood])
        self.assertEqual(["full"] * 10, self.events)
        self.complete(flood[-3])
        self.assertEqual(200, self.status(flood[-3]))

    def test_room(self):
        """Handshakes that end in any way free their places."""
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
        """The handshake shares the timeout of the first head."""
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
        """A drain closes handshakes rather than waiting for them."""
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
        """Serve one connection and two concurrent handshakes."""
        self.clock = Clock()
        self.reactor = with_transports(self.clock, self.transports)
        handler = Handler()
        handler.answer = hello
        settings = ServerSettings(max_connections=1, max_handshakes=2)
        self.factory = HTTPFactory(self.clock, handler, settings)
        self.addCleanup(self.factory.close)
        self.server_side = tls.server_side(self.reactor, ServerTLS([b"http/1.1"]), self.factory)

    def silent(self):
        """Connect a client that does not start the handshake."""
        link = Link(self.clock, User(), self.server_side.buildProtocol(None))
        link.settle()
        return link

    def ask(self):
        """Send a request on a new connection, and return the status of its response."""
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
                begin(connection, b"GET", b"/", [(b"Host", b"node")], receiver),
            )
        )
        link.settle()
        return receiver.head.status

    def test_silent_clients(self):
        """Silent clients do not lock out others; the oldest of too many is evicted."""
        silent = [self.silent() for _ in range(4)]
        self.assertEqual(200, self.ask())
        for link in silent:
            link.settle()
        events = [link.client_io.protocol.events for link in silent]
        self.assertEqual([["made", "lost"]] * 3 + [["made"]], events)
        self.assertEqual(1, len(self.factory.connections))

    def test_too_many_connections(self):
        """An idle client is evicted; without one, a further client receives a 503."""
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
