"""Agents at a listener of the server."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.defer import succeed
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from tests.network import MemoryNetwork, context_with
from tests.pki.support import Issuer, clock_now
from tests.tunnel.memory import Acceptor, HalfCloseUser
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL, ClientContexts, ServerContexts
from yurttunnel.pki.identity import identity_from_certificate, parse_identifiers
from yurttunnel.server.agents import (
    AgentListener,
    AgentListenerSettings,
    RefuseStreams,
)
from yurttunnel.server.registry import INodeSession, NodeNotConnected, SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT, SessionConnection
from yurttunnel.tunnel.session import PeerDescription, TunnelSession
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits
from yurttunnel.wire.session import Side

GRACE = 0.8
WINDOW = 30.0
PROCESS = b"a" * 16


class Agent:
    """An agent's end that sends a given HELLO, and stores the result.

    ``answer`` is the server's HELLO, ``error`` the reason for the end of the last connection.
    """

    def __init__(self, clock, issuer, node="edge-1", identifiers=None, process=PROCESS):
        self.clock = clock
        self.acceptor = Acceptor()
        self.context = context_with(clock, self.acceptor)
        identifiers = parse_identifiers(identifiers or f"host={node}&ipv4=192.0.2.7")
        self.credentials = issuer.node(node, identifiers, enrolment=node.encode().hex())
        self.hello = Hello(Limits(), NO_SESSION, process, properties={"software": "test 1"})
        self.session = None
        self.answer = None
        self.error = None
        self.ends = []

    def buildProtocol(self, addr):
        """Return a connection."""
        return SessionConnection(self.clock, self)

    def doStart(self):
        """Provide the interface of a factory."""

    doStop = doStart

    def claim(self, identifiers):
        """Set the claimed identifiers in HELLO."""
        properties = {**self.hello.properties, "identifiers": identifiers}
        self.hello = replace(self.hello, properties=properties)

    def list_kept(self, other):
        """Add the session of another of the agent's clients to HELLO."""
        properties = {**self.hello.properties, "kept": other.session.session_id.hex()}
        self.hello = replace(self.hello, properties=properties)

    def request_resumption(self):
        """Request to resume the session in the next HELLO."""
        wire = self.session.wire
        self.hello = replace(self.hello, session=self.session.session_id, received=wire.received)

    def connection_ready(self, connection):
        """Send HELLO."""
        connection.send_hello(self.hello)

    def hello_received(self, connection, hello):
        """Start a session, or resume the existing one."""
        self.answer = hello
        if self.session is None or self.session.session_id != hello.session:
            description = PeerDescription("agent", "server", "server")
            own = replace(self.hello, session=NO_SESSION, received=0)
            self.session = TunnelSession(self.context, Side.AGENT, own, hello, description)
            self.session.on_closed.append(lambda code, text: self.ends.append((code, text)))
        connection.start(self.session, hello)

    def connection_ended(self, connection, reason):
        """Record the reason."""
        self.error = reason.value


def ignore_session(connection, hello):
    """Neither use nor refuse the session in the server's HELLO."""
    connection.dataReceived = lambda data: None


@implementer(INodeSession)
class Route:
    """A route to a node through a sibling."""

    draining = False
    connected = True

    def __init__(self, node):
        self.node = node
        self.identifiers = parse_identifiers(f"host={node}")

    def open_without_fallback(self, host, port, timeout, request_id, holder):
        """Return a marker of this route."""
        return succeed("by the sibling")

    open_stream = open_without_fallback

    def snapshot(self):
        """Raise: no test reads the snapshot of a route."""
        raise NotImplementedError


class ListenerTests(TestCase):
    """The common test case of an agents' listener."""

    grace = GRACE

    def setUp(self):
        """Create a server without agents."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.context = context_with(self.clock, RefuseStreams())
        self.registry = SessionRegistry(self.clock)
        self.revoked = set()
        self.limits = Limits(resume_window=int(WINDOW * 1000))
        self.identify = identity_from_certificate
        self.replicas = None
        self.listener = AgentListener(
            self.context,
            self.registry,
            lambda identity: identity.enrolment in self.revoked,
            AgentListenerSettings(self.limits, self.grace),
            {ENROLMENT_PROTOCOL: HalfCloseUser},
            identify=lambda certificate: self.identify(certificate),
            replicas=lambda: self.replicas,
        )
        contexts = ServerContexts(self.issuer.server(), optional=(ENROLMENT_PROTOCOL,))
        self.network = MemoryNetwork(
            self.clock, tls.server_side(self.clock, contexts, self.listener)
        )
        self.addCleanup(self.check_nothing_is_left)

    def check_nothing_is_left(self):
        """Stop everything; no session, connection or timer may remain."""
        self.listener.close_sessions(Code.GOING_AWAY, "the test is over")
        self.network.settle()
        self.clock.advance(CLOSE_TIMEOUT)
        self.network.settle()
        self.assert_no_sessions()
        self.assertEqual([], self.network.open_links)
        self.clock.advance(2 * WINDOW)
        self.assertEqual([], self.clock.getDelayedCalls())

    def assert_no_sessions(self):
        """Check that neither listener nor registry has a session."""
        self.assertEqual([], self.listener.sessions())
        for node in ("edge-1", "edge-2"):
            self.assertRaises(NodeNotConnected, self.registry.find, node)

    def agent(self, node="edge-1", **more):
        """Create an agent."""
        return Agent(self.clock, self.issuer, node, **more)

    def dial(self, agent):
        """Connect an agent; return its connection."""
        creator = ClientContexts(agent.credentials).creator("server.test")
        self.network.connect(TLSMemoryBIOFactory(creator, True, agent, self.clock))
        self.network.settle()
        return self.network.links[-1]

    def connected(self, node="edge-1", **more):
        """Create and connect an agent; return it."""
        agent = self.agent(node, **more)
        self.dial(agent)
        self.assertIsNotNone(agent.session, agent.error)
        return agent

    def stream(self, agent):
        """Open a stream to an agent; return the protocol of its near end."""
        opened, user = [], HalfCloseUser()
        found = self.registry.find("edge-1")
        found.open_stream("192.0.2.80", 80, 15.0, "r").addCallback(opened.append)
        self.network.settle()
        agent.far = HalfCloseUser()
        agent.acceptor.requests[-1].accept().attach(agent.far)
        self.network.settle()
        opened[0].attach(user)
        return user

    def refused(self, agent, code, *words):
        """Check that an agent is rejected, and leaves no state."""
        before = self.listener.sessions()
        agent.session = None
        self.dial(agent)
        self.assertIsInstance(agent.error, Refused)
        self.assertEqual(code, agent.error.code, agent.error.text)
        for word in words:
            self.assertIn(word, agent.error.text)
        self.assertEqual(before, self.listener.sessions())

    def serving(self, agent):
        """Return whether the registry finds an agent's session."""
        return self.registry.find("edge-1").tunnel.session_id == agent.session.session_id
