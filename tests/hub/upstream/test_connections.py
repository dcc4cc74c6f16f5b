"""Connections to API servers by TLS, on the sockets of this machine."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from benchmarks.ports import free_ports
from tests.http.support import Handler
from tests.pki.support import Issuer
from yurttunnel.http.asking import ask
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.hub.interfaces import IIdentity
from yurttunnel.hub.upstream import connections
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.servers import Server
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.callers import HTTP_PROTOCOL, OptionalCallerContexts
from yurttunnel.pki.contexts import ClientContexts, peer_certificate
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import DirectReactor


@implementer(IIdentity)
class Identity:
    """That of a node with a certificate."""

    def __init__(self, credentials):
        self.node = ClientContexts(credentials, HTTP_PROTOCOL)
        self.anonymous = ClientContexts(credentials, HTTP_PROTOCOL, presents=False)

    def problem(self):
        """Return nothing."""

    def note_acceptance(self, is_accepted):
        """See ``IIdentity``; nobody tells."""


class ConnectionsTests(TestCase):
    """A server at 127.0.0.1 that says who its client is."""

    def setUp(self):
        """Listen."""
        self.issuer = Issuer.make(self)
        self.reactor = DirectReactor(reactor)
        self.handler = Handler()
        self.handler.answer = self.tell_client
        self.factory = HTTPFactory(reactor, self.handler, ServerSettings())
        self.addCleanup(self.factory.close)
        self.server = self.listen(self.issuer.server("localhost"))
        self.identity = Identity(self.issuer.node("edge-1"))
        self.connections = Connections(self.reactor, self.identity)
        self.addCleanup(self.connections.close)

    def listen(self, credentials):
        """Serve with a certificate; return the server."""
        contexts = OptionalCallerContexts(credentials)
        return self.listen_with(tls.server_side(self.reactor, contexts, self.factory))

    def listen_with(self, factory):
        """Serve."""
        port = self.reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return Server("localhost", port.getHost().port)

    def tell_client(self, exchange):
        """Answer with the name in the client's certificate."""
        certificate = peer_certificate(exchange.transport)
        name = "nobody" if certificate is None else certificate.subject.rfc4514_string()
        exchange.respond(200, [], name.encode())

    async def ask(self, as_node=True, server=None):
        """Ask who we are."""
        connection = await maybeDeferred(self.connections.take, server or self.server, as_node)
        return (await ask(connection, b"GET", b"/", [(b"Host", b"api")])).body.decode()

    async def refused(self, server):
        """Return why there is no connection."""
        failure = await self.assertFailure(
            maybeDeferred(self.connections.take, server, True), RequestFailed
        )
        self.assertIn(str(server), failure.text)
        return failure.text

    async def test_identities(self):
        """The node has its certificate, and a bearer of a token has none; both are kept."""
        for _ in range(2):
            self.assertIn("edge-1", await self.ask())
            self.assertEqual("nobody", await self.ask(as_node=False))
        self.assertEqual(2, self.connections.statistics.connects)

    async def test_renewal(self):
        """With a new certificate there are new connections; it is told once, each time."""
        await self.ask()
        for name in ("edge-2", "edge-3"):
            renewed = self.issuer.node(name)
            self.identity.node.rotate(renewed, utc_now(self.issuer.clock))
            self.assertEqual(0, self.connections.statistics.idle)
            self.assertIn(name, await self.ask())
        self.assertEqual(1, len(self.identity.node.on_rotated))

    async def test_other_name(self):
        """A server with a certificate for another name is refused, with the name."""
        server = self.listen(self.issuer.server("other.test"))
        self.assertIn("other.test", await self.refused(server))

    async def test_other_authority(self):
        """So is one of another authority."""
        server = self.listen(Issuer.make(self).server("localhost"))
        self.assertIn("not from the authority", await self.refused(server))

    async def test_no_tls(self):
        """One that does not speak TLS says what to check."""
        server = self.listen_with(self.factory)
        self.assertIn("it does not speak TLS: check the port", await self.refused(server))

    async def test_nobody_listens(self):
        """A port that is closed refuses."""
        server = Server("localhost", free_ports.take())
        self.assertIn("refused", await self.refused(server))

    async def test_unknown_name(self):
        """A name that is none cannot be reached."""
        text = await self.refused(Server("nothing.invalid", 6443))
        self.assertIn("nothing.invalid", text)

    async def test_silence(self):
        """A server that takes the connection and says nothing has its time, TLS included."""
        self.patch(connections, "CONNECT_SECONDS", 0.05)
        server = self.listen_with(Factory.forProtocol(Protocol))
        self.assertIn("no connection within 0.05 s", await self.refused(server))

    async def test_certificate_refused(self):
        """A server that refuses ours is said to do so, in words, to whoever asks first."""
        foreign = Issuer.make(self).node("edge-1")
        trusting = replace(foreign, authorities=self.identity.node.credentials.authorities)
        self.identity.node = ClientContexts(trusting, HTTP_PROTOCOL)
        failure = await self.assertFailure(Deferred.fromCoroutine(self.ask()), ExchangeFailed)
        self.assertIn("refuses this node's certificate", failure.text)

    async def test_lost_server(self):
        """All that goes on with a server that is lost ends at once."""
        await self.ask(as_node=False)
        arrived = Deferred()
        self.handler.answer = arrived.callback
        asking = Deferred.fromCoroutine(self.ask())
        await arrived
        attempt = self.connections.take(self.server, True)
        self.connections.close_server(self.server, "it is lost")
        await self.assertFailure(asking, ExchangeFailed)
        await self.assertFailure(attempt, CancelledError, RequestFailed)
        # What was idle is of no use any more either.
        self.handler.answer = self.tell_client
        self.assertEqual("nobody", await self.ask(as_node=False))
        self.assertEqual(0, self.connections.statistics.reuses)

    async def test_what_waits_for_a_connection_can_have_a_timeout(self):
        """Whoever gives up in the midst of it is told of that, as of all that takes too long."""
        attempt = self.connections.take(self.server, True)
        await self.assertFailure(attempt.addTimeout(0, reactor), DeferredTimeout)
