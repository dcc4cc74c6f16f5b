"""Connections that carry sessions, over real TLS in memory: Twisted's and this project's."""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import replace

from cryptography.x509.oid import NameOID
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.test.iosim import FakeTransport, IOPump
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.tunnel.certificates import ClientTLS, ServerTLS
from tests.tunnel.memory import MIB, Acceptor, Bulk, HalfCloseUser
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT, HELLO_TIMEOUT, SessionConnection
from yurttunnel.tunnel.direct.tls import TLSFactory
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.tunnel.tls import ALPN
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits
from yurttunnel.wire.session import Side

LIMITS = Limits()


class Owner:
    """The common base of listener and client, which records the events of connections."""

    side: Side
    others = None

    def __init__(self, clock):
        self.clock = clock
        self.acceptor = Acceptor()
        self.counters = TunnelCounters()
        self.context = SessionContext(clock, self.counters, MemoryBudget(512 * MIB), self.acceptor)
        self.process = os.urandom(16)
        self.session = None
        self.ready = []
        self.ended = []

    def make(self):
        """Create a connection."""
        return SessionConnection(self.clock, self, self.others)

    def connection_ready(self, connection):
        """Record the event."""
        self.ready.append(connection)

    def connection_ended(self, connection, reason):
        """Record the event."""
        self.ended.append((connection, reason.value))

    def begin(self, connection, own, hello):
        """Start a session."""
        description = PeerDescription(self.side.name, "peer", "192.0.2.1:1")
        self.session = TunnelSession(self.context, self.side, own, hello, description)
        connection.start(self.session, hello)


class Listener(Owner):
    """The server side."""

    side = Side.SERVER
    refusal = None

    def hello_received(self, connection, hello):
        """Resume the session or start one, unless it is to be refused."""
        if self.refusal is not None:
            raise self.refusal
        session = self.session
        own = Hello(LIMITS, os.urandom(16), self.process)
        if session is not None and session.session_id == hello.session:
            received = session.wire.received
            connection.send_hello(replace(own, session=hello.session, received=received))
            connection.start(session, hello)
        else:
            connection.send_hello(own)
            self.begin(connection, own, hello)


class Client(Owner):
    """The agent side."""

    side = Side.AGENT

    def connection_ready(self, connection):
        """Send the HELLO."""
        super().connection_ready(connection)
        own = Hello(LIMITS, NO_SESSION, self.process)
        if self.session is not None:
            received = self.session.wire.received
            own = replace(own, session=self.session.session_id, received=received)
        connection.send_hello(own)

    def hello_received(self, connection, hello):
        """Resume the session, or start one."""
        if self.session is not None and hello.session == self.session.session_id:
            connection.start(self.session, hello)
        else:
            self.begin(connection, Hello(LIMITS, NO_SESSION, self.process), hello)


class RawClient(Protocol):
    """A client that sends arbitrary data."""

    def __init__(self):
        self.received = b""
        self.lost = None

    def dataReceived(self, data):
        """Store data."""
        self.received += data

    def connectionLost(self, reason):
        """Record the end."""
        self.lost = reason.value


class Link:
    """One TLS connection in memory."""

    def __init__(self, clock, client, server):
        self.clock = clock
        self.client_io = FakeTransport(client, isServer=False)
        self.server_io = FakeTransport(server, isServer=True)
        self.pump = IOPump(client, server, self.client_io, self.server_io, False)
        self.lost = False
        server.makeConnection(self.server_io)
        client.makeConnection(self.client_io)

    def turn(self):
        """Run one iteration."""
        self.clock.advance(0)
        return not self.lost and bool(self.pump.pump())

    def settle(self):
        """Deliver all data."""
        idle = 0
        while idle < 3:
            idle = 0 if self.turn() else idle + 1

    def cut(self):
        """Break the connection, and lose the data in flight."""
        self.lost = True
        for io in (self.client_io, self.server_io):
            if not io.disconnected:
                io.disconnected = io.disconnecting = True
                io.protocol.connectionLost(Failure(ConnectionLost("reset by peer")))


class TwistedTLS:
    """Twisted's TLS under the protocols."""

    def server_factory(self, creator, factory):
        """Return the factory of the accepting side."""
        return TLSMemoryBIOFactory(creator, False, factory, self.clock)

    def client_factory(self, creator, factory):
        """Return the factory of the connecting side."""
        return TLSMemoryBIOFactory(creator, True, factory, self.clock)


class DirectTLS:
    """This project's TLS under the protocols."""

    def server_factory(self, creator, factory):
        """Return the factory of the accepting side."""
        return TLSFactory(creator.serverConnectionForTLS, False, factory)

    def client_factory(self, creator, factory):
        """Return the factory of the connecting side."""
        return TLSFactory(creator.clientConnectionForTLS, True, factory)


class ConnectionTests:
    """A mixin with the tests; the classes below select the TLS."""

    def setUp(self):
        """Prepare both ends."""
        self.clock = Clock()
        self.listener = Listener(self.clock)
        self.client = Client(self.clock)
        self.server_protocols = [ALPN]
        self.addCleanup(self.end_sessions)

    def end_sessions(self):
        """End the sessions and check that no timer outlives them."""
        for owner in (self.listener, self.client):
            if owner.session is not None:
                owner.session.close(Code.DONE, "the test is over")
        for _ in range(4):
            self.clock.advance(CLOSE_TIMEOUT)
        self.assertEqual([], self.clock.getDelayedCalls())

    def link(self, make_client, protocols=(ALPN,), settle=True):
        """Connect a client over TLS."""
        server = self.server_factory(
            ServerTLS(self.server_protocols), _factory(self.listener.make)
        ).buildProtocol(None)
        client = self.client_factory(
            ClientTLS(list(protocols)), _factory(make_client)
        ).buildProtocol(None)
        link = Link(self.clock, client, server)
        if settle:
            link.settle()
        return link

    def connect(self):
        """Connect the agent's end."""
        return self.link(self.client.make)

    def raw(self, protocols=(ALPN,)):
        """Connect a client that sends arbitrary data; return it and its link."""
        raw = RawClient()
        return raw, self.link(lambda: raw, protocols)

    def assert_failed(self, code):
        """Check that the listener was notified once, of a violation with ``code``."""
        [(_, error)] = self.listener.ended
        self.assertIsInstance(error, Violation)
        self.assertEqual(code, error.code)

    # -- starting a session --------------------------------------------------------------------

    def test_interface(self):
        """A connection provides the interface for the end of the handshake."""
        self.assertTrue(verifyObject(IHandshakeListener, self.listener.make()))

    def test_session(self):
        """After the HELLOs both ends carry a session, with streams in both directions."""
        link = self.connect()
        self.assertTrue(self.listener.session.connected)
        self.assertTrue(self.client.session.connected)
        self.assertTrue(self.listener.ready[0].session_started)
        near, far = self.join(link)
        near[0].write(b"question")
        far[0].write(b"answer")
        link.settle()
        self.assertEqual((b"question", b"answer"), (far[1].received, near[1].received))

    def join(self, link):
        """Open a stream; return both ends, each with its user."""
        opened, near_user, far_user = [], HalfCloseUser(), HalfCloseUser()
        self.listener.session.open_stream("h", 1, 15.0, "r").addCallback(opened.append)
        link.settle()
        far = self.client.acceptor.requests[-1].accept()
        far.attach(far_user)
        link.settle()
        opened[0].attach(near_user)
        return (opened[0], near_user), (far, far_user)

    def test_peer_certificate(self):
        """The verified certificate is available once the connection is ready."""
        self.connect()
        subject = self.listener.ready[0].peer_certificate.subject
        name = subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        self.assertEqual("edge-1", name)

    def test_no_alpn(self):
        """A peer that does not negotiate a protocol is dropped before any data is read."""
        _, link = self.raw(())
        link.settle()
        self.assertEqual([], self.listener.ready)
        self.assert_failed(Code.PROTOCOL)

    def test_wrong_alpn(self):
        """A peer that negotiates an unknown protocol is dropped, too."""
        self.server_protocols = [b"http/1.1"]
        _, link = self.raw((b"http/1.1",))
        link.settle()
        self.assertEqual([], self.listener.ready)
        self.assert_failed(Code.PROTOCOL)

    def test_other_protocol(self):
        """Another protocol that shares the port gets its connections, with all data."""
        other = HalfCloseUser()
        self.server_protocols = [ALPN, b"other"]
        self.listener.others = {b"other": lambda: other}
        raw, link = self.raw((b"other",))
        raw.transport.write(b"hello, other")
        link.settle()
        self.assertEqual(b"hello, other", other.received)
        other.transport.write(b"hello, client")
        link.settle()
        self.assertEqual(b"hello, client", raw.received)
        self.clock.advance(HELLO_TIMEOUT + 1)
        link.settle()
        self.assertEqual([], self.listener.ended)
        link.cut()
        self.assertEqual(["made", "lost"], other.events)

    def test_no_certificate(self):
        """A client without a certificate never becomes ready at the server."""
        server = self.server_factory(ServerTLS([ALPN]), _factory(self.listener.make)).buildProtocol(
            None
        )
        client = self.client_factory(
            ClientTLS([ALPN], name=None), _factory(self.client.make)
        ).buildProtocol(None)
        Link(self.clock, client, server).settle()
        self.assertEqual([], self.listener.ready)
        self.assertEqual(1, len(self.listener.ended))
        self.assertEqual(1, len(self.client.ended))

    # -- timeouts ------------------------------------------------------------------------------

    def test_silent_before_handshake(self):
        """A silent peer is dropped after HELLO_TIMEOUT."""
        link = self.link(RawClient, settle=False)
        self.clock.advance(HELLO_TIMEOUT - 0.1)
        self.assertFalse(link.server_io.disconnecting)
        self.clock.advance(0.2)
        self.assertTrue(link.server_io.disconnecting)
        link.cut()
        self.assertEqual([], self.listener.ready)

    def test_slow_handshake(self):
        """A handshake that arrives byte by byte is dropped after HELLO_TIMEOUT all the same."""
        link = self.link(RawClient, settle=False)
        hello = b"".join(link.client_io.stream)
        for byte in hello[: int(HELLO_TIMEOUT) - 1]:
            link.server_io.bufferReceived(bytes([byte]))
            self.clock.advance(1)
        self.assertFalse(link.server_io.disconnecting)
        self.clock.advance(1)
        self.assertTrue(link.server_io.disconnecting)

    def test_slow_hello(self):
        """A HELLO that arrives byte by byte is dropped after HELLO_TIMEOUT all the same."""
        raw, link = self.raw()
        hello = Hello(LIMITS, NO_SESSION, b"p" * 16).encode()
        for byte in hello[: int(HELLO_TIMEOUT) + 1]:
            raw.transport.write(bytes([byte]))
            link.settle()
            self.clock.advance(1)
        link.settle()
        self.assert_failed(Code.TIMEOUT)
        self.assertIsNone(self.listener.session)

    def test_deadline_ends_with_hello(self):
        """The timeout of the handshake and the HELLO does not apply to a session."""
        link = self.connect()
        for _ in range(int(HELLO_TIMEOUT) * 2):
            self.clock.advance(1)
            link.settle()
        self.assertTrue(self.listener.session.connected)

    def test_server_that_never_answers(self):
        """A client whose server is silent after the handshake is disconnected as well."""
        self.listener.hello_received = lambda connection, hello: None
        link = self.connect()
        self.clock.advance(HELLO_TIMEOUT)
        link.settle()
        self.assertEqual(1, len(self.client.ended))

    # -- invalid starts ------------------------------------------------------------------------

    def test_first_frame_is_no_hello(self):
        """A peer that begins with another frame gets a CLOSE and is disconnected."""
        raw, link = self.raw()
        raw.transport.write(frames.offset_frame(frames.PING, 0, 1))
        link.settle()
        self.assertEqual([(frames.CLOSE, Code.PROTOCOL)], _closes(raw.received))
        self.assertIsNotNone(raw.lost)
        self.assert_failed(Code.PROTOCOL)

    def test_garbage(self):
        """A peer that sends no frame at all gets a CLOSE and is disconnected, too."""
        raw, link = self.raw()
        raw.transport.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        link.settle()
        self.assertEqual(1, len(_closes(raw.received)))
        self.assertEqual(1, len(self.listener.ended))

    def test_garbage_that_goes_on(self):
        """Data after the first violation triggers neither another answer nor another timeout."""
        raw, link = self.raw()
        for _ in range(int(CLOSE_TIMEOUT)):
            raw.transport.write(b"GET / HTTP/1.1\r\n")
            # The client's TLS does not see the end: nothing is sent back.
            self.clock.advance(0)
            data = link.client_io.getOutBuffer()
            if data:
                link.server_io.bufferReceived(data)
            self.clock.advance(1)
        self.assertTrue(link.server_io.disconnecting)
        link.cut()

    def test_hello_too_long(self):
        """A HELLO that is too long is rejected from its header alone."""
        raw, link = self.raw()
        raw.transport.write(frames.HEADER.pack(1 << 20, frames.HELLO, 0))
        link.settle()
        self.assert_failed(Code.FRAME_TOO_LARGE)

    def test_close_as_first_frame(self):
        """If a peer begins with CLOSE, its reason is passed to the owner."""
        raw, link = self.raw()
        raw.transport.write(frames.coded_frame(frames.CLOSE, 0, Code.GOING_AWAY, "not now"))
        link.settle()
        [(_, error)] = self.listener.ended
        self.assertEqual((Code.GOING_AWAY, "not now"), (error.code, error.text))
        self.assertEqual(b"", raw.received)

    def test_refused_by_owner(self):
        """A violation that the owner raises is sent to the peer's owner."""
        self.listener.refusal = Violation(Code.REVOKED, "node edge-1 has been revoked")
        self.connect()
        for owner in (self.listener, self.client):
            [(connection, error)] = owner.ended
            self.assertEqual(Code.REVOKED, error.code)
            self.assertIn("node edge-1 has been revoked", str(error))
            self.assertFalse(connection.session_started)

    def test_frames_behind_hello(self):
        """Frames that arrive in one piece with the HELLO are passed to the session."""
        raw, link = self.raw()
        hello = Hello(LIMITS, NO_SESSION, b"p" * 16).encode()
        raw.transport.write(hello + frames.offset_frame(frames.PING, 0, 7))
        link.settle()
        self.assertIn(frames.offset_frame(frames.PONG, 0, 7), raw.received)

    def test_hello_byte_by_byte(self):
        """A HELLO may be split anywhere."""
        raw, link = self.raw()
        for byte in Hello(LIMITS, NO_SESSION, b"p" * 16).encode():
            raw.transport.write(bytes([byte]))
            link.settle()
        self.assertTrue(self.listener.session.connected)

    def test_impossible_position(self):
        """A peer that acknowledges data that was never sent gets CLOSE; the session has ended."""
        link = self.connect()
        link.cut()
        session = self.listener.session
        self.listener.ended.clear()
        raw, link = self.raw()
        hello = Hello(LIMITS, session.session_id, b"p" * 16, received=1 << 40)
        raw.transport.write(hello.encode())
        link.settle()
        self.assertTrue(session.closed)
        self.assertEqual(Code.PROTOCOL, _closes(raw.received)[0][1])
        self.assertEqual(1, len(self.listener.ended))

    # -- the end -------------------------------------------------------------------------------

    def test_lost_at_any_time(self):
        """After a break at any byte the owner is notified once, and no timer is left."""
        link = self.connect()
        total = 0
        link.cut()
        self.end_sessions()
        while total < 40:
            self.setUp()
            link = self.link(self.client.make, settle=False)
            for _ in range(total):
                link.turn()
            total += 1
            link.cut()
            self.clock.advance(0)
            self.assertEqual(1, len(self.listener.ended))
            self.assertEqual(1, len(self.client.ended))
            self.end_sessions()

    def test_close(self):
        """The close of a session ends the connection at both ends, in time."""
        link = self.connect()
        self.listener.session.close(Code.REPLACED, "a newer session")
        link.settle()
        self.assertTrue(self.client.session.closed)
        self.assertEqual({Code.REPLACED: 1}, dict(self.client.counters.session_ends))
        for owner in (self.listener, self.client):
            self.assertEqual(1, len(owner.ended))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_peer_that_does_not_answer_the_close(self):
        """A peer that does not answer ``close_notify`` is aborted after CLOSE_TIMEOUT."""
        link = self.connect()
        self.listener.session.close(Code.REPLACED, "a newer session")
        self.clock.advance(CLOSE_TIMEOUT - 0.1)
        self.assertFalse(link.server_io.disconnecting)
        self.clock.advance(0.2)
        self.assertTrue(link.server_io.disconnecting)
        link.cut()

    def test_closed_while_starting(self):
        """A session that is closed while its connection starts closes it without a delay."""
        self.connect().cut()
        session = self.listener.session
        carry = session.carry

        def carry_and_close(carrier, received):
            carry(carrier, received)
            session.close(Code.GOING_AWAY, "drained")

        session.carry = carry_and_close
        link = self.connect()
        self.assertTrue(self.client.session.closed)
        self.assertTrue(link.server_io.disconnected)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_silent_connection(self):
        """A silent connection is aborted, and the session waits for the next one."""
        link = self.connect()
        for _ in range(100):
            self.clock.advance(0.25)
        self.assertTrue(link.server_io.disconnecting)
        self.assertFalse(self.listener.session.closed)
        self.assertFalse(self.listener.session.connected)
        link.cut()

    def test_replaced_by_a_newer_connection(self):
        """A session that is resumed while its old connection seems alive drops that one."""
        old = self.connect()
        near, _ = self.join(old)
        self.client.session.connection_lost(by_peer=False)
        self.connect()
        self.assertTrue(old.server_io.disconnecting)
        self.assertTrue(self.listener.session.connected)
        near[0].write(b"x")
        old.cut()
        self.assertTrue(self.listener.session.connected)

    # -- resumption ----------------------------------------------------------------------------

    def test_resumption(self):
        """Streams continue over new connections: nothing is lost, duplicated or reordered."""
        link = self.connect()
        near, far = self.join(link)
        chance = random.Random(5)
        data = chance.randbytes(400_000), chance.randbytes(400_000)
        for (stream, _), sent in zip((near, far), data, strict=True):
            stream.registerProducer(Bulk(stream, sent), True)
        cuts = 0
        for _ in range(2_000):
            link.turn()
            self.clock.advance(0.001)
            if cuts < 5 and chance.random() < 0.2:
                cuts += 1
                link.cut()
                self.clock.advance(0.3)
                link = self.connect()
        link.settle()
        self.assertEqual(5, cuts)
        self.assertEqual(5, self.listener.counters.resumptions)
        for (_, user), sent in zip((far, near), data, strict=True):
            self.assertEqual(hashlib.sha256(sent).digest(), hashlib.sha256(user.received).digest())


def _factory(make):
    return Factory.forProtocol(make)


def _closes(data):
    found = []
    while data:
        length, kind, _ = frames.HEADER.unpack_from(data)
        end = frames.HEADER_SIZE + length
        if kind == frames.CLOSE:
            found.append((kind, frames.decode_coded(data[frames.HEADER_SIZE : end])[0]))
        data = data[end:]
    return found


class TwistedTLSConnectionTests(ConnectionTests, TwistedTLS, SynchronousTestCase):
    """Connections over Twisted's TLS."""


class DirectTLSConnectionTests(ConnectionTests, DirectTLS, SynchronousTestCase):
    """Connections over this project's TLS."""
