"""Agents of a worker, who wait until the first process has said who they are."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

from cryptography import x509
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer
from tests.tunnel.certificates import ClientTLS, ServerTLS
from tests.tunnel.test_connection import DirectTLS, Link, RawClient, TwistedTLS
from yurttunnel.pki.identity import identity_from_certificate
from yurttunnel.server.agents import AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.workers.admission import AdmittedAgents
from yurttunnel.tunnel.connection import ALPN, CLOSE_TIMEOUT, EARLY_LIMIT
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits


class FakeConnection:
    """A connection after its handshake."""

    handed_over = greeted = False

    def __init__(self, certificate):
        self.peer_certificate = certificate
        self.waits = False
        self.said = []
        self.transport = SimpleNamespace(getPeer=lambda: "192.0.2.7")

    def wait(self):
        """Read no more."""
        self.waits = True

    def go_on(self):
        """Read again."""
        self.waits = False

    def send_hello(self, hello):
        """Remember the answer."""
        self.said.append(hello)

    def start(self, session, hello):
        """Remember who carries what."""
        self.said.append(session)

    def refuse(self, code, text):
        """Remember the refusal."""
        self.said.append(code)


class AdmissionTests(SynchronousTestCase):
    """One agent, and the answers of the first process."""

    def setUp(self):
        """Make a worker's listener."""
        self.asked = []
        clock = Clock()
        self.registry = SessionRegistry(clock)
        self.agents = AdmittedAgents(
            SessionContext(clock, TunnelCounters(), MemoryBudget(1 << 24), RefuseStreams()),
            self.registry,
            AgentListenerSettings(Limits(), 0.8, "server", "test"),
            lambda number, certificate: self.asked.append((number, certificate)),
        )
        self.certificate = Issuer.make(self).node().certificate
        self.identity = identity_from_certificate(self.certificate)
        self.connection = FakeConnection(self.certificate)
        self.hello = Hello(Limits(), NO_SESSION, os.urandom(16), 0)

    def ask(self):
        """Have the agent send its HELLO; the number of the question."""
        self.agents.hello_received(self.connection, self.hello)
        ((number, certificate),) = self.asked
        self.assertEqual(x509.load_der_x509_certificate(certificate), self.certificate)
        return number

    def test_nothing_happens_before_the_answer(self):
        """Neither is anything read, nor has the node a session."""
        self.ask()
        self.assertTrue(self.connection.waits)
        self.assertEqual(self.connection.said, [])
        self.assertEqual(self.registry.direct_nodes(), [])

    def test_who_is_let_in_begins(self):
        """As the node that the first process names, and is told of so many servers."""
        self.agents.admitted(self.ask(), self.identity, 3)
        hello, session = self.connection.said
        self.assertEqual(hello.properties["servers"], "3")
        self.assertEqual(self.registry.direct("edge-1").tunnel, session)
        self.assertEqual(self.agents.identities("edge-1"), [self.identity])
        self.assertFalse(self.connection.waits)
        other = replace(self.identity, not_after=self.identity.not_before)
        self.agents.end("edge-1", Code.REVOKED, "another was revoked", other)
        self.assertEqual(self.registry.direct("edge-1").tunnel, session)
        self.agents.end("edge-1", Code.REVOKED, "it has been revoked", self.identity)
        self.assertEqual(self.registry.direct_nodes(), [])

    def test_agents_are_told_of_more_servers(self):
        """Those that are there, and those that come."""
        self.agents.admitted(self.ask(), self.identity, 1)
        told = []
        self.patch(TunnelSession, "tell_servers", lambda session, servers: told.append(servers))
        self.agents.servers_changed(2)
        self.assertEqual([2], told)
        self.assertEqual(2, self.agents.replicas)

    def test_who_is_not_let_in_is_told(self):
        """By the code of the first process."""
        self.agents.refused(self.ask(), Code.REVOKED, "it has been revoked")
        self.assertEqual(self.connection.said, [Code.REVOKED])

    def test_a_claim_that_is_not_covered_is_refused(self):
        """What the HELLO says is held against what the first process has said."""
        self.hello = Hello(
            Limits(), NO_SESSION, bytes(16), 0, properties={"identifiers": "host=a-stranger"}
        )
        self.agents.admitted(self.ask(), self.identity, None)
        self.assertEqual(self.connection.said, [Code.NOT_AUTHORIZED])

    def test_an_agent_that_has_left_is_forgotten(self):
        """The answer is for nobody then."""
        number = self.ask()
        self.agents.connection_ended(self.connection, Failure(ConnectionDone()))
        self.agents.admitted(number, self.identity, None)
        self.agents.refused(number, Code.REVOKED, "")
        self.assertEqual(self.connection.said, [])

    def test_nobody_comes_in_without_a_certificate(self):
        """The first process is not even asked."""
        self.connection.peer_certificate = None
        with self.assertRaises(Violation) as caught:
            self.agents.hello_received(self.connection, self.hello)
        self.assertIs(caught.exception.code, Code.NOT_AUTHORIZED)
        self.assertEqual(self.asked, [])


class BehindHelloTests:
    """What an agent sends behind its HELLO, while the first process is asked who it is."""

    def setUp(self):
        """Make a worker's listener, with the real connections over TLS in memory."""
        self.asked = []
        self.clock = Clock()
        self.registry = SessionRegistry(self.clock)
        self.agents = AdmittedAgents(
            SessionContext(self.clock, TunnelCounters(), MemoryBudget(1 << 24), RefuseStreams()),
            self.registry,
            AgentListenerSettings(Limits(), 0.8, "server", "test"),
            lambda number, certificate: self.asked.append(number),
        )
        self.raw = RawClient()
        server = self.server_factory(ServerTLS([ALPN]), self.agents).buildProtocol(None)
        client = self.client_factory(
            ClientTLS([ALPN]), Factory.forProtocol(lambda: self.raw)
        ).buildProtocol(None)
        self.link = Link(self.clock, client, server)
        self.link.settle()
        self.addCleanup(self.end)

    def end(self):
        """Leave no session and no timer."""
        self.agents.close_sessions(Code.DONE, "the test is over")
        for _ in range(4):
            self.link.settle()
            self.clock.advance(CLOSE_TIMEOUT)
        self.assertEqual([], self.clock.getDelayedCalls())

    def send(self, *pieces):
        """Have the agent send, each piece in a record of its own, and let all arrive at once."""
        for piece in pieces:
            self.raw.transport.write(piece)
        self.link.settle()

    def hello(self):
        """Return the agent's HELLO."""
        return Hello(Limits(), NO_SESSION, os.urandom(16), 0).encode()

    def admit(self):
        """Have the first process let the agent in."""
        identity = identity_from_certificate(Issuer.make(self).node().certificate)
        self.agents.admitted(self.asked.pop(), identity, None)
        self.link.settle()

    def assert_answered(self, ping):
        """Require that the session has answered a ping."""
        self.assertIn(frames.offset_frame(frames.PONG, 0, ping), self.raw.received)
        self.assertTrue(self.registry.direct("edge-1").tunnel.connected)

    def test_a_frame_behind_the_hello_is_the_sessions(self):
        """It is answered as soon as the agent is let in, and not before."""
        self.send(self.hello() + frames.offset_frame(frames.PING, 0, 7))
        self.assertEqual(b"", self.raw.received)
        self.admit()
        self.assert_answered(7)

    def test_half_a_frame_behind_the_hello_is_the_sessions(self):
        """Its other half comes after the admission, or before it in a record of its own."""
        for early in (0, 1):
            if early:
                self.end()
                self.setUp()
            ping = frames.offset_frame(frames.PING, 0, 7)
            halves = ping[:5], ping[5:]
            self.send(self.hello() + halves[0], *halves[1 : 1 + early])
            self.admit()
            self.send(*halves[1 + early :])
            self.assert_answered(7)

    def test_a_close_behind_the_hello_ends_the_session(self):
        """The agent is in no list after it, as in one process."""
        self.send(self.hello() + frames.coded_frame(frames.CLOSE, 0, Code.GOING_AWAY, "bye"))
        self.admit()
        self.assertEqual([], self.registry.direct_nodes())
        self.assertEqual([], self.agents.sessions())

    def test_what_comes_behind_a_hello_is_bounded(self):
        """An agent that sends more than a read takes has its connection ended, and is let go."""
        self.send(self.hello(), *[bytes(16_000)] * (EARLY_LIMIT // 16_000 + 1))
        self.clock.advance(0)
        self.assertTrue(self.link.server_io.disconnecting)
        self.link.cut()
        self.assertEqual({"protocol": 1}, dict(self.agents.refusals))
        self.admit()
        self.assertEqual([], self.registry.direct_nodes())

    def test_who_is_refused_has_nothing_read(self):
        """What is behind its HELLO is dropped with it."""
        self.send(self.hello() + frames.offset_frame(frames.PING, 0, 7))
        self.agents.refused(self.asked.pop(), Code.REVOKED, "it has been revoked")
        self.link.settle()
        close = frames.coded_frame(frames.CLOSE, 0, Code.REVOKED, "it has been revoked")
        self.assertEqual(close, self.raw.received)


class DirectBehindHelloTests(BehindHelloTests, DirectTLS, SynchronousTestCase):
    """Over this project's TLS, which workers have."""


class TwistedBehindHelloTests(BehindHelloTests, TwistedTLS, SynchronousTestCase):
    """Over Twisted's TLS, which goes on to hand over records while it is paused."""
