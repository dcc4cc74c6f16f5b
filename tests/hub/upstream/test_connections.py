"""TLS connections to API servers, on loopback sockets."""

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
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.http.simple_client import fetch
from yurttunnel.hub.interfaces import IIdentity
from yurttunnel.hub.upstream import connections
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.servers import Server
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL, OptionalCallerContexts
from yurttunnel.pki.contexts import ClientContexts, peer_certificate
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import DirectReactor


@implementer(IIdentity)
class Identity:
    """The identity of a node with a certificate."""

    def __init__(self, credentials):
        self.node = ClientContexts(credentials, HTTP_PROTOCOL)
        self.anonymous = ClientContexts(credentials, HTTP_PROTOCOL, present_certificate=False)

    def problem(self):
        """Return that there is none."""

    def note_acceptance(self, is_accepted):
        """See ``IIdentity``; never called."""


class ConnectionsTests(TestCase):
    """A server at 127.0.0.1 that responds with its client's name."""

    def setUp(self):
        """Listen."""
        self.issuer = Issuer.make(self)
        self.reactor = DirectReactor(reactor)
        self.handler = Handler()
        self.handler.answer = self.respond_with_client
        self.factory = HTTPFactory(reactor, self.handler, ServerSettings())
        self.addCleanup(self.factory.close)
        self.server = self.listen(self.issuer.server("localhost"))
        self.identity = Identity(self.issuer.node("edge-1"))
        self.connections = Connections(self.reactor, self.identity)
        self.addCleanup(self.connections.close)

    def listen(self, credentials):
        """Listen with a certificate; return the server."""
        contexts = OptionalCallerContexts(credentials)
        return self.listen_with(tls.server_side(self.reactor, contexts, self.factory))

    def listen_with(self, factory):
        """Listen."""
        port = self.reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return Server("localhost", port.getHost().port)

    def respond_with_client(self, exchange):
        """Respond with the name in the client's certificate."""
        certificate = peer_certificate(exchange.transport)
        name = "nobody" if certificate is None else certificate.subject.rfc4514_string()
        exchange.respond(200, [], name.encode())

    async def send(self, as_node=True, server=None):
        """Return the client's name as the server sees it."""
        connection = await maybeDeferred(self.connections.acquire, server or self.server, as_node)
        return (await fetch(connection, b"GET", b"/", [(b"Host", b"api")])).body.decode()

    async def assert_rejected(self, server):
        """Return the error of a connection."""
        failure = await self.assertFailure(
            maybeDeferred(self.connections.acquire, server, True), RequestFailed
        )
        self.assertIn(str(server), failure.text)
        return failure.text

    async def test_identities(self):
        """The node uses its certificate, a token uses none; both connections are kept."""
        for _ in range(2):
            self.assertIn("edge-1", await self.send())
            self.assertEqual("nobody", await self.send(as_node=False))
        self.assertEqual(2, self.connections.statistics.connects)

    async def test_renewal(self):
        """With a new certificate new connections are used; each renewal is reported once."""
        await self.send()
        for name in ("edge-2", "edge-3"):
            renewed = self.issuer.node(name)
            self.identity.node.prepare(renewed, utc_now(self.issuer.clock))()
            self.assertEqual(0, self.connections.statistics.idle)
            self.assertIn(name, await self.send())
        self.assertEqual(1, len(self.identity.node.on_rotated))

    async def test_other_name(self):
        """A server with a certificate for another name is rejected, with the name."""
        server = self.listen(self.issuer.server("other.test"))
        self.assertIn("other.test", await self.assert_rejected(server))

    async def test_other_authority(self):
        """So is one of another authority."""
        server = self.listen(Issuer.make(self).server("localhost"))
        self.assertIn("not from the authority", await self.assert_rejected(server))

    async def test_no_tls(self):
        """The error for a server without TLS says what to check."""
        server = self.listen_with(self.factory)
        self.assertIn("it does not speak TLS: check the port", await self.assert_rejected(server))

    async def test_connection_refused(self):
        """A closed port is an error."""
        server = Server("localhost", free_ports.take())
        self.assertIn("refused", await self.assert_rejected(server))

    async def test_unknown_name(self):
        """A name that cannot be resolved is an error."""
        text = await self.assert_rejected(Server("nothing.invalid", 6443))
        self.assertIn("nothing.invalid", text)

    async def test_silence(self):
        """A server that accepts the connection and sends nothing has a timeout, TLS included."""
        self.patch(connections, "CONNECT_SECONDS", 0.05)
        server = self.listen_with(Factory.forProtocol(Protocol))
        self.assertIn("no connection within 0.05 s", await self.assert_rejected(server))

    async def test_certificate_rejected(self):
        """A server that rejects the hub's certificate is reported as such to the first request."""
        foreign = Issuer.make(self).node("edge-1")
        trusting = replace(foreign, authorities=self.identity.node.credentials.authorities)
        self.identity.node = ClientContexts(trusting, HTTP_PROTOCOL)
        failure = await self.assertFailure(Deferred.fromCoroutine(self.send()), ExchangeFailed)
        self.assertIn("rejects this node's certificate", failure.text)

    async def test_lost_server(self):
        """All requests on a server that failed end at once."""
        await self.send(as_node=False)
        arrived = Deferred()
        self.handler.answer = arrived.callback
        request_for = Deferred.fromCoroutine(self.send())
        await arrived
        attempt = self.connections.acquire(self.server, True)
        self.connections.close_server(self.server, "it is lost")
        await self.assertFailure(request_for, ExchangeFailed)
        await self.assertFailure(attempt, CancelledError, RequestFailed)
        # Idle connections cannot be used any more, either.
        self.handler.answer = self.respond_with_client
        self.assertEqual("nobody", await self.send(as_node=False))
        self.assertEqual(0, self.connections.statistics.reuses)

    async def test_what_waits_for_a_connection_can_have_a_timeout(self):
        """A request that times out while waiting for a connection gets a TimeoutError."""
        attempt = self.connections.acquire(self.server, True)
        await self.assertFailure(attempt.addTimeout(0, reactor), DeferredTimeout)
