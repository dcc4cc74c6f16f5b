"""Unmodified Twisted clients through the tunnel."""

from __future__ import annotations

import hashlib
import random
from io import BytesIO

import treq.client
from cryptography.hazmat.primitives.asymmetric import ed25519
from twisted.conch.checkers import InMemorySSHKeyDB, SSHPublicKeyChecker
from twisted.conch.ssh.channel import SSHChannel
from twisted.conch.ssh.common import NS
from twisted.conch.ssh.connection import SSHConnection
from twisted.conch.ssh.factory import SSHFactory
from twisted.conch.ssh.keys import Key
from twisted.conch.ssh.transport import SSHClientTransport
from twisted.conch.ssh.userauth import SSHUserAuthClient
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.endpoints import connectProtocol, wrapClientTLS
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols import tls
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import Agent, FileBodyProducer, HTTPConnectionPool
from twisted.web.iweb import IAgentEndpointFactory
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.tunnel.certificates import ClientTLS, ServerTLS
from tests.tunnel.memory import HalfCloseUser, SessionPair, User
from yurttunnel.tunnel.endpoint import TunnelEndpoint
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.wire.codes import Code


class EndpointTestCase(SynchronousTestCase):
    """A pair of sessions; the agent's end connects each stream to a protocol of ``factory``."""

    factory: Factory

    def setUp(self):
        """Connect the sessions."""
        self.pair = SessionPair()
        self.pair.acceptor.answer = self.accept
        self.addCleanup(self.close)

    def accept(self, request):
        """Connect a stream to a protocol, as if the target were local."""
        stream = request.accept()
        stream.attach(self.factory.buildProtocol(stream.getPeer()))

    def close(self):
        """End the sessions; nothing may be left then."""
        self.pair.close()
        self.pair.clock.advance(0)
        self.assertEqual([], self.pair.clock.getDelayedCalls())

    def endpoint(self, host="edge-1.test", port=80, timeout=15.0):
        """Return the endpoint of a target at the agent."""
        return TunnelEndpoint(self.pair.server, host, port, timeout)


class TunnelEndpointTests(EndpointTestCase):
    """The endpoint itself."""

    factory = Factory.forProtocol(HalfCloseUser)

    def test_interface(self):
        """A ``TunnelEndpoint`` is a stream client endpoint."""
        self.assertTrue(verifyObject(IStreamClientEndpoint, self.endpoint()))

    def test_connect(self):
        """Connecting returns a protocol of the factory, connected to the requested target."""
        connecting = self.endpoint("host.test", 8080, 2.5).connect(Factory.forProtocol(User))
        self.pair.pump()
        user = self.successResultOf(connecting)
        self.assertEqual(["made"], user.events)
        self.assertEqual("edge-1/host.test:8080", repr(user.transport.getPeer()))
        [request] = self.pair.acceptor.requests
        self.assertEqual(("host.test", 8080, 2.5), (request.host, request.port, request.timeout))

    def test_request_ids(self):
        """Each connection has its own request id."""
        for _ in range(2):
            self.endpoint().connect(Factory.forProtocol(User)).addErrback(lambda reason: None)
        self.pair.pump()
        first, second = self.pair.acceptor.requests
        self.assertNotEqual(first.request_id, second.request_id)

    def test_failure(self):
        """A refused dial fails the Deferred with the far end's reason."""
        self.pair.acceptor.answer = lambda request: request.fail(Code.REFUSED, "nobody listens")
        connecting = self.endpoint().connect(Factory.forProtocol(User))
        self.pair.pump()
        self.assertEqual(Code.REFUSED, self.failureResultOf(connecting, StreamFailed).value.code)

    def test_cancel(self):
        """Cancelling the Deferred cancels the dial at the agent."""
        cancelled = []
        self.pair.acceptor.answer = lambda request: request.on_cancel(
            lambda: cancelled.append(True)
        )
        connecting = self.endpoint().connect(Factory.forProtocol(User))
        self.pair.pump()
        connecting.cancel()
        self.pair.pump()
        self.failureResultOf(connecting, StreamFailed)
        self.assertEqual([True], cancelled)

    def test_no_protocol(self):
        """A factory that builds no protocol fails the Deferred, and the stream is reset."""
        factory = Factory()
        factory.buildProtocol = lambda address: None
        self.check_no_protocol(factory, StreamFailed)

    def test_broken_factory(self):
        """A factory that raises fails the Deferred, and the stream is reset."""
        factory = Factory()
        factory.buildProtocol = lambda address: 1 / 0
        self.check_no_protocol(factory, ZeroDivisionError)

    def test_broken_protocol(self):
        """A protocol that raises in ``connectionMade`` fails it, too, and resets the stream."""

        class Broken(Protocol):
            def connectionMade(self):
                raise ZeroDivisionError

        self.check_no_protocol(Factory.forProtocol(Broken), ZeroDivisionError)

    def check_no_protocol(self, factory, error):
        """Connect; check that the Deferred fails with ``error`` and no stream is left."""
        connecting = self.endpoint().connect(factory)
        self.pair.pump()
        self.failureResultOf(connecting, error)
        self.assertEqual({}, self.pair.server.wire.streams)
        self.assertEqual({}, self.pair.agent.wire.streams)

    def test_greeting(self):
        """Data that the target sends first arrives after the Deferred has fired."""

        class Greeting(User):
            def connectionMade(self):
                self.transport.write(b"220 ready")

        self.factory = Factory.forProtocol(Greeting)
        seen = []
        connecting = self.endpoint().connect(Factory.forProtocol(User))
        connecting.addCallback(lambda user: seen.append(bytes(user.received)) or user)
        self.pair.pump()
        self.assertEqual(b"220 ready", self.successResultOf(connecting).received)
        self.assertEqual([b""], seen)


class TLSTests(EndpointTestCase):
    """TLS over a stream."""

    def setUp(self):
        """Make the target speak TLS."""
        super().setUp()
        self.users = []

        def make():
            self.users.append(User())
            return self.users[-1]

        self.factory = TLSMemoryBIOFactory(
            ServerTLS([b"test"]), False, Factory.forProtocol(make), self.pair.clock
        )

    def test_wrap_client_tls(self):
        """``wrapClientTLS`` over a tunnel endpoint gives TLS to the target in both directions."""
        endpoint = wrapClientTLS(ClientTLS([b"test"]), self.endpoint())
        # It joins writes with the global reactor, which does not run here.
        self.patch(tls, "_get_default_clock", lambda: self.pair.clock)
        connecting = endpoint.connect(Factory.forProtocol(User))
        self.pair.pump()
        user = self.successResultOf(connecting)
        data = random.Random(6).randbytes(1_000_000)
        user.transport.write(data)
        self.users[0].transport.write(data[::-1])
        self.pair.pump()
        self.assertEqual(b"test", user.transport.negotiatedProtocol)
        self.assertEqual(data, self.users[0].received)
        self.assertEqual(data[::-1], user.received)
        user.transport.loseConnection()
        self.pair.pump()
        for end in (user, self.users[0]):
            self.assertIsInstance(end.reasons[0].value, ConnectionDone)
        self.assertEqual({}, self.pair.server.wire.streams)


@implementer(IAgentEndpointFactory)
class TunnelEndpoints:
    """Endpoints for an HTTP client, which all lead through a session."""

    def __init__(self, session):
        self.session = session
        self.asked = 0

    def endpointForURI(self, uri):
        """Return the endpoint of a URI's host."""
        self.asked += 1
        return TunnelEndpoint(self.session, uri.host.decode(), uri.port)


class Large(Resource):
    """Serves much data, and a digest of posted data."""

    isLeaf = True
    data = random.Random(7).randbytes(5_000_000)

    def render_GET(self, request):
        """Return the data."""
        request.setHeader(b"content-type", b"application/octet-stream")
        return self.data

    def render_POST(self, request):
        """Return the digest, with a small delay."""
        digest = hashlib.sha256(request.content.read()).hexdigest().encode()
        request.site.clock.callLater(0, lambda: (request.write(digest), request.finish()))
        return NOT_DONE_YET


class TreqTests(EndpointTestCase):
    """treq, which uses Twisted's HTTP agent, with a Twisted web site at the agent."""

    def setUp(self):
        """Create the client and the site."""
        super().setUp()
        clock = self.pair.clock
        self.factory = Site(Large(), reactor=clock)
        self.factory.clock = clock
        self.endpoints = TunnelEndpoints(self.pair.server)
        self.pool = HTTPConnectionPool(clock, persistent=True)
        agent = Agent.usingEndpointFactory(clock, self.endpoints, self.pool)
        cooperator = self.pair.server_context.cooperator
        self.client = treq.client.HTTPClient(
            agent,
            data_to_body_producer=lambda data: FileBodyProducer(
                BytesIO(data), cooperator=cooperator
            ),
        )

    def close(self):
        """Close idle connections first."""
        closing = self.pool.closeCachedConnections()
        self.pair.pump()
        self.successResultOf(closing)
        self.assertEqual({}, self.pair.server.wire.streams)
        super().close()

    def content(self, requesting):
        """Return the body of a response."""
        getting = requesting.addCallback(treq.content)
        self.pair.pump()
        return self.successResultOf(getting)

    def test_large_body(self):
        """A body of five megabytes arrives completely."""
        body = self.content(self.client.get("http://edge-1.test/"))
        self.assertEqual(Large.data, body)

    def test_keep_alive(self):
        """Consecutive requests use one stream."""
        for _ in range(3):
            self.content(self.client.get("http://edge-1.test/"))
        self.assertEqual(1, len(self.pair.acceptor.requests))

    def test_parallel(self):
        """Concurrent requests use a stream each."""
        getting = [
            self.client.get("http://edge-1.test/").addCallback(treq.content) for _ in range(4)
        ]
        self.pair.pump()
        for body in getting:
            self.assertEqual(Large.data, self.successResultOf(body))
        self.assertEqual(4, len(self.pair.acceptor.requests))

    def test_post(self):
        """A posted body arrives completely."""
        digest = self.content(self.client.post("http://edge-1.test/", data=Large.data))
        self.assertEqual(hashlib.sha256(Large.data).hexdigest().encode(), digest)

    def test_slow_reader(self):
        """A response whose body is not read yet is held back, and blocks no other request."""
        getting = self.client.get("http://edge-1.test/", unbuffered=True)
        self.pair.pump()
        response = self.successResultOf(getting)
        self.assertLess(self.pair.server.wire.bytes_received, 200_000)
        self.assertEqual(Large.data, self.content(self.client.get("http://edge-1.test/")))
        self.assertEqual(Large.data, self.content(succeed(response)))

    def test_refused(self):
        """An unreachable target fails the request with the reason."""
        self.pair.acceptor.answer = lambda request: request.fail(Code.REFUSED, "nobody listens")
        getting = self.client.get("http://edge-1.test/")
        self.pair.pump()
        self.assertEqual(Code.REFUSED, self.failureResultOf(getting, StreamFailed).value.code)


class Session(SSHChannel):
    """A session channel at the server: ``exec`` runs the command and ends."""

    name = b"session"

    def request_exec(self, data):
        """Run a command whose output is its own name, many times."""
        self.conn.transport.factory.clock.callLater(0, self.run, data[4:])
        return True

    def run(self, command):
        """Write the output and exit."""
        self.write(command * 50_000)
        self.conn.sendRequest(self, b"exit-status", b"\0\0\0\3")
        self.loseConnection()


class Avatar:
    """The user of an SSH server."""

    def __init__(self):
        self.conn = None

    def lookupChannel(self, channel_type, window, max_packet, data):
        """Return a session."""
        return Session(remoteWindow=window, remoteMaxPacket=max_packet, avatar=self)

    def gotGlobalRequest(self, request_type, data):
        """Refuse."""
        return 0


class Realm:
    """Creates an avatar for every user."""

    def requestAvatar(self, avatar_id, mind, *interfaces):
        """Return an avatar."""
        return interfaces[0], Avatar(), lambda: None


class UserAuth(SSHUserAuthClient):
    """Authenticates with a key."""

    def __init__(self, key, connection):
        super().__init__(b"user", connection)
        self.key = key

    def getPublicKey(self):
        """Offer the key once."""
        return None if self.lastAuth == b"publickey" else self.key.public()

    def getPrivateKey(self):
        """Return the key."""
        return succeed(self.key)

    def getPassword(self, prompt=None):
        """Return ``None``."""
        return fail(ValueError("there is no password"))


class SSHClient(SSHClientTransport):
    """An SSH client that verifies the host key; ``ready`` fires with its connection."""

    def __init__(self, host_key, key):
        self.host_key = host_key
        self.key = key
        self.ready = Deferred()

    def verifyHostKey(self, host_key, fingerprint):
        """Compare the key."""
        if host_key != self.host_key:
            return fail(ValueError("this is another host"))
        return succeed(True)

    def connectionSecure(self):
        """Authenticate."""
        connection = SSHConnection()
        connection.serviceStarted = lambda: (
            SSHConnection.serviceStarted(connection),
            self.ready.callback(connection),
        )
        self.requestService(UserAuth(self.key, connection))


class Command(SSHChannel):
    """Runs a command at an SSH server and stores its output."""

    name = b"session"

    def __init__(self, command):
        super().__init__()
        self.command = command
        self.received = b""
        self.status = None
        self.ended = False

    def channelOpen(self, data):
        """Request the command."""
        self.conn.sendRequest(self, b"exec", NS(self.command))

    def dataReceived(self, data):
        """Store output."""
        self.received += data

    def request_exit_status(self, data):
        """Store the status."""
        self.status = int.from_bytes(data, "big")

    def closed(self):
        """Record the end."""
        self.ended = True


class ConchTests(EndpointTestCase):
    """conch's SSH client against conch's SSH server at the agent."""

    def setUp(self):
        """Create the server."""
        super().setUp()
        self.host_key, self.key = (Key(ed25519.Ed25519PrivateKey.generate()) for _ in range(2))
        self.factory = SSHFactory()
        self.factory.clock = self.pair.clock
        self.factory.privateKeys = {b"ssh-ed25519": self.host_key}
        self.factory.publicKeys = {b"ssh-ed25519": self.host_key.public()}
        self.factory.getPrimes = lambda: None
        checker = SSHPublicKeyChecker(InMemorySSHKeyDB({b"user": [self.key.public()]}))
        self.factory.portal = Portal(Realm(), [checker])
        self.factory.startFactory()

    def test_command(self):
        """A command that is run over SSH through the tunnel returns all of its output."""
        client = SSHClient(self.host_key.public().blob(), self.key)
        connectProtocol(self.endpoint(port=22), client)
        self.pair.pump()
        connection = self.successResultOf(client.ready)
        command = Command(b"uptime")
        connection.openChannel(command)
        self.pair.pump()
        self.assertEqual(b"uptime" * 50_000, command.received)
        self.assertEqual((3, True), (command.status, command.ended))
        client.loseConnection()
        self.pair.pump()
        self.assertEqual({}, self.pair.server.wire.streams)
