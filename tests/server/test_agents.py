"""The agents' listener, with agents that say what a test has them say, over TLS in memory."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from twisted.internet.defer import succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from tests.network import MemoryNetwork, context_with
from tests.pki.support import Issuer, clock_now
from tests.tunnel.memory import Acceptor, HalfCloseUser
from yurttunnel.agent.connection_group import FIRST_DELAY
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL, ClientContexts, ServerContexts
from yurttunnel.pki.identity import BadIdentity, identity_from_certificate, parse_identifiers
from yurttunnel.pki.problems import refusal
from yurttunnel.server import agents
from yurttunnel.server.agents import (
    MAX_SESSIONS_OF_NODE,
    AgentListener,
    AgentListenerSettings,
    RefuseStreams,
)
from yurttunnel.server.node_session import HESITATION, RETURN_PATIENCE
from yurttunnel.server.registry import INodeSession, NodeNotConnected, SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT, SessionConnection
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.session import PeerDescription, TunnelSession
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits, Refused
from yurttunnel.wire.session import Side

GRACE = 0.8
WINDOW = 30.0
PROCESS = b"a" * 16


class Agent:
    """An agent's end that sends the HELLO it is told to send, and keeps what comes of it.

    ``answer`` is the server's HELLO, ``error`` why the last connection ended.
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
        """Make a connection."""
        return SessionConnection(self.clock, self)

    def doStart(self):
        """Be a factory."""

    doStop = doStart

    def claim(self, identifiers):
        """Say in the HELLO what the agent is to be chosen for."""
        properties = {**self.hello.properties, "identifiers": identifiers}
        self.hello = replace(self.hello, properties=properties)

    def ask_to_resume(self):
        """Ask in the next HELLO for the session to go on."""
        wire = self.session.wire
        self.hello = replace(self.hello, session=self.session.session_id, received=wire.received)

    def connection_ready(self, connection):
        """Say HELLO."""
        connection.send_hello(self.hello)

    def hello_received(self, connection, hello):
        """Begin a session, or go on with the one there is."""
        self.answer = hello
        if self.session is None or self.session.session_id != hello.session:
            description = PeerDescription("agent", "server", "server")
            own = replace(self.hello, session=NO_SESSION, received=0)
            self.session = TunnelSession(self.context, Side.AGENT, own, hello, description)
            self.session.on_closed.append(lambda code, text: self.ends.append((code, text)))
        connection.start(self.session, hello)

    def connection_ended(self, connection, reason):
        """Note why."""
        self.error = reason.value


@implementer(INodeSession)
class Way:
    """A way to a node by a sibling, which leads there."""

    draining = False
    connected = True

    def __init__(self, node):
        self.node = node
        self.identifiers = parse_identifiers(f"host={node}")

    def open_here(self, host, port, timeout, request_id, holder):
        """Return what tells this way from others."""
        return succeed("by the sibling")

    open_stream = open_here

    def snapshot(self):
        """Nobody asks."""
        raise NotImplementedError


class ListenerTests(TestCase):
    """What the tests share."""

    grace = GRACE

    def setUp(self):
        """Make a server without agents."""
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
            AgentListenerSettings(self.limits, self.grace, "server", "test 2"),
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
        """End everything; no session, connection or timer may remain."""
        self.listener.close_sessions(Code.GOING_AWAY, "the test is over")
        self.network.settle()
        self.clock.advance(CLOSE_TIMEOUT)
        self.network.settle()
        self.assert_no_sessions()
        self.assertEqual([], self.network.open_links)
        self.clock.advance(2 * WINDOW)
        self.assertEqual([], self.clock.getDelayedCalls())

    def assert_no_sessions(self):
        """Neither listener nor registry has one."""
        self.assertEqual([], self.listener.sessions())
        for node in ("edge-1", "edge-2"):
            self.assertRaises(NodeNotConnected, self.registry.find, node)

    def agent(self, node="edge-1", **more):
        """Make an agent."""
        return Agent(self.clock, self.issuer, node, **more)

    def dial(self, agent):
        """Have an agent connect; give its connection."""
        creator = ClientContexts(agent.credentials).creator("server.test")
        self.network.connect(TLSMemoryBIOFactory(creator, True, agent, self.clock))
        self.network.settle()
        return self.network.links[-1]

    def connected(self, node="edge-1", **more):
        """Have a new agent connect, and give it."""
        agent = self.agent(node, **more)
        self.dial(agent)
        self.assertIsNotNone(agent.session, agent.error)
        return agent

    def stream(self, agent):
        """Open a stream to an agent; give the user of its near end."""
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
        """Check that an agent is refused, and nothing is kept of it."""
        before = self.listener.sessions()
        agent.session = None
        self.dial(agent)
        self.assertIsInstance(agent.error, Refused)
        self.assertEqual(code, agent.error.code, agent.error.text)
        for word in words:
            self.assertIn(word, agent.error.text)
        self.assertEqual(before, self.listener.sessions())

    def serving(self, agent):
        """Whether the registry leads to an agent's session."""
        return self.registry.find("edge-1").tunnel.session_id == agent.session.session_id


class NewSessionTests(ListenerTests):
    """From a certificate and a HELLO to a session."""

    def test_registered(self):
        """A node is found by what its certificate says when the HELLO claims nothing."""
        agent = self.connected(identifiers="host=edge-1&host=camera&ipv4=192.0.2.7")
        for host in ("edge-1", "camera", "192.0.2.7"):
            found = self.registry.find(host)
            self.assertEqual("edge-1", found.node)
            self.assertEqual(agent.session.session_id, found.tunnel.session_id)
        self.assertEqual(1, len(self.listener.sessions()))

    def test_answer(self):
        """The server's HELLO has its limits and version, and a session id of its own choice."""
        first, second = self.connected(), self.connected("edge-2")
        self.assertEqual(self.limits, first.answer.limits)
        self.assertEqual("test 2", first.answer.properties["software"])
        self.assertEqual(first.answer.process, second.answer.process)
        ids = {first.answer.session, second.answer.session, NO_SESSION}
        self.assertEqual(3, len(ids))

    def test_snapshot(self):
        """What is told of a session is of the certificate and the HELLO."""
        agent = self.connected()
        snapshot = self.registry.find("edge-1").snapshot()
        self.assertEqual(("edge-1", "test 1", True), (snapshot.node, snapshot.version,
                                                      snapshot.connected))  # fmt: skip
        not_after = agent.credentials.certificate.not_valid_after_utc
        self.assertEqual(not_after, snapshot.certificate_not_after)

    def test_covered_identifiers(self):
        """A HELLO may claim less than the certificate covers; the node's name is always served."""
        agent = self.agent(identifiers="host=edge-1&host=camera&cidr=10.0.0.0/8")
        agent.claim("host=edge-1&cidr=10.1.0.0/16")
        self.dial(agent)
        self.assertEqual("edge-1", self.registry.find("10.1.2.3").node)
        for host in ("10.2.0.1", "camera"):
            self.assertRaises(NodeNotConnected, self.registry.find, host)

    def test_identifiers_not_covered(self):
        """A claim beyond the certificate is refused, and names what is not covered."""
        agent = self.agent()
        agent.claim("host=edge-1&host=edge-2")
        self.refused(agent, Code.NOT_AUTHORIZED, "edge-1", "host=edge-2")

    def test_default_route_not_covered(self):
        """Nor does a node become everybody's way out by saying so."""
        agent = self.agent()
        agent.claim("host=edge-1&default-route=true")
        self.refused(agent, Code.NOT_AUTHORIZED, "default-route")

    def test_identifiers_that_cannot_be_parsed(self):
        """A claim that makes no sense is a violation of the protocol."""
        agent = self.agent()
        agent.claim("host")
        self.refused(agent, Code.PROTOCOL, "edge-1", "key=value")

    def test_certificate_that_names_no_node(self):
        """A certificate of the authority that is no node's is refused."""
        agent = self.agent()
        agent.credentials = self.issuer.caller()
        self.refused(agent, Code.NOT_AUTHORIZED, "not a node's")

    def test_identities_are_read_as_told(self):
        """Who a node is is for the caller to read from certificates, and to find wrong."""

        def identify(certificate):
            if "edge-2" in str(certificate.subject):
                raise BadIdentity("this cluster has no edge-2")
            return replace(identity_from_certificate(certificate), node="other-name")

        self.identify = identify
        agent = self.agent()
        agent.claim("host=edge-1")
        self.dial(agent)
        self.assertEqual("other-name", self.registry.find("edge-1").node)
        self.refused(self.agent("edge-2"), Code.NOT_AUTHORIZED, "this cluster has no edge-2")

    def test_no_certificate(self):
        """Should TLS ever let a connection through without a certificate, the listener does not."""
        agent = self.agent()
        with mock.patch.object(SessionConnection, "peer_certificate", None):
            self.refused(agent, Code.NOT_AUTHORIZED, "no certificate")

    def test_revoked(self):
        """A node that is revoked gets no session."""
        agent = self.agent()
        self.revoked.add(b"edge-1".hex())
        words = ("node edge-1 has been revoked", "is no node of the cluster any more")
        self.refused(agent, Code.REVOKED, *words)

    def test_agents_open_no_streams(self):
        """An agent that wants a stream is answered that there are none for it."""
        agent = self.connected()
        opened = agent.session.open_stream("127.0.0.1", 22, 15.0, "r")
        self.network.settle()
        self.assertEqual(Code.DENIED, self.failureResultOf(opened, StreamFailed).value.code)
        self.assertTrue(agent.session.connected)


class UnfinishedTests(ListenerTests):
    """Connections before the end of their HELLO."""

    def setUp(self):
        """Allow three of them."""
        self.patch(agents, "MAX_UNFINISHED", 3)
        super().setUp()

    def silent(self):
        """Connect without a word."""
        agent = self.agent()
        agent.connection_ready = lambda connection: None
        self.dial(agent)
        return agent

    def test_the_oldest_makes_room(self):
        """As many as MAX_UNFINISHED may be unfinished; one more ends the oldest of them."""
        silent = [self.silent() for _ in range(3)]
        self.connected()
        self.assertEqual([False, True, True], [one.error is None for one in silent])
        self.silent()
        self.silent()
        self.assertEqual([False, False, True], [one.error is None for one in silent])
        self.assertEqual(2, self.listener.refusals["overloaded"])
        self.assertEqual(4, len(self.network.open_links))

    def test_others_of_the_port_do_not_count(self):
        """A connection that has been handed over is never the oldest, and ends with the server."""
        other = mock.Mock()
        self.listener.share_port(ENROLMENT_PROTOCOL, lambda: other)
        agent = self.agent()
        creator = ClientContexts(agent.credentials, ENROLMENT_PROTOCOL).creator("server.test")
        factory = mock.Mock(spec_set=["buildProtocol", "doStart", "doStop"])
        factory.buildProtocol.return_value = HalfCloseUser()
        self.network.connect(TLSMemoryBIOFactory(creator, True, factory, self.clock))
        self.network.settle()
        other.makeConnection.assert_called_once()
        for _ in range(4):
            self.silent()
        other.connectionLost.assert_not_called()
        self.listener.close_sessions(Code.GOING_AWAY, "the server has stopped")
        self.network.settle()
        other.connectionLost.assert_called_once()

    def test_sessions_do_not_count(self):
        """A connection that has become a session, or a new one's refusal, is not unfinished."""
        for number in range(4):
            self.connected(f"edge-{number}")
        agent = self.agent()
        agent.claim("nonsense")
        for _ in range(4):
            self.refused(agent, Code.PROTOCOL)

    def test_ended_by_close_sessions(self):
        """Unfinished connections end with the server."""
        self.silent()
        self.listener.close_sessions(Code.GOING_AWAY, "the server has stopped")
        self.network.settle()
        self.assertEqual([], self.network.open_links)


class ResumeTests(ListenerTests):
    """Agents that come back."""

    def lose(self, agent):
        """Cut the agent's connection, and have it ask for its session."""
        self.network.cut()
        agent.ask_to_resume()

    def assert_new(self, agent, before):
        """Check that an agent has another session than before, its node's only one."""
        self.assertNotEqual(before.session_id, agent.session.session_id)
        self.assertTrue(self.serving(agent))

    def test_same_agent(self):
        """The same process of the same node gets its session, and its streams go on."""
        agent = self.connected()
        user = self.stream(agent)
        before = agent.session
        self.lose(agent)
        self.dial(agent)
        self.assertIs(before, agent.session)
        self.assertTrue(agent.session.connected)
        self.assertEqual(1, self.context.counters.resumptions)
        user.transport.write(b"x")
        self.network.settle()
        self.assertEqual((["made"], []), (user.told, agent.ends))

    def test_wrong_node(self):
        """A node that names another's session gets a new one of its own; the other's stays."""
        victim = self.connected()
        thief = self.agent("edge-2")
        thief.hello = replace(thief.hello, session=victim.session.session_id)
        self.dial(thief)
        self.assertNotEqual(victim.session.session_id, thief.session.session_id)
        self.assertEqual(2, len(self.listener.sessions()))
        self.assertTrue(self.serving(victim))
        self.assertTrue(victim.session.connected)

    def test_other_process(self):
        """A restarted agent that knows the session id gets a new session."""
        agent = self.connected()
        before = agent.session
        self.lose(agent)
        agent.hello = replace(agent.hello, process=b"b" * 16)
        self.dial(agent)
        self.assert_new(agent, before)
        self.assertEqual({Code.SESSION_LOST: 1}, dict(self.context.counters.session_ends))

    def test_closed_session(self):
        """A session that is over is not resumed; the new one begins on the same connection."""
        agent = self.connected()
        self.stream(agent)
        before = agent.session
        self.lose(agent)
        self.clock.advance(GRACE + 0.1)
        self.assertEqual([], self.listener.sessions())
        self.assertGreater(agent.hello.received, 0)
        self.dial(agent)
        self.assert_new(agent, before)
        self.assertTrue(agent.session.connected, agent.error)

    def test_old_connection_seems_alive(self):
        """A session moves to the new connection; the end of the old one does not disturb it."""
        agent = self.connected()
        user = self.stream(agent)
        old = self.network.links[-1]
        old.lost = True
        agent.session.connection_silent()
        agent.ask_to_resume()
        self.assertTrue(self.registry.find("edge-1").tunnel.connected)
        self.dial(agent)
        self.assertTrue(agent.session.connected)
        self.assertTrue(old.server_io.disconnecting)
        old.cut()
        user.transport.write(b"x")
        self.network.pass_time(2)
        self.assertTrue(self.registry.find("edge-1").tunnel.connected)
        self.assertEqual(["made"], user.told)

    def test_revoked_meanwhile(self):
        """A node that has been revoked does not get its session back."""
        agent = self.connected()
        self.lose(agent)
        self.revoked.add(b"edge-1".hex())
        self.dial(agent)
        self.assertEqual(Code.REVOKED, agent.error.code)

    def test_impossible_position(self):
        """An agent that has received what was never sent loses its session, and may begin anew."""
        agent = self.connected()
        self.lose(agent)
        agent.hello = replace(agent.hello, received=1 << 40)
        self.dial(agent)
        # Found before the server has said HELLO, so CLOSE is the first thing it says.
        self.assertEqual(Code.PROTOCOL, agent.error.code)
        self.assert_no_sessions()
        agent.hello = replace(agent.hello, session=NO_SESSION, received=0)
        self.dial(agent)
        self.assertTrue(self.serving(agent))

    def test_description_follows(self):
        """After a return the certificate and the enrolment are those that the agent shows now."""
        agent = self.connected()
        agent.credentials = self.issuer.node(lifetime=7200.0, enrolment="cd")
        self.lose(agent)
        self.dial(agent)
        not_after = agent.credentials.certificate.not_valid_after_utc
        snapshot = self.registry.find("edge-1").snapshot()
        self.assertEqual((1, not_after), (snapshot.resumptions, snapshot.certificate_not_after))
        self.revoked.add("cd")
        self.listener.revoke("edge-1")
        self.assertEqual([], self.listener.sessions())

    def test_told_loss(self):
        """An agent whose machine says that it is gone has GRACE to come back."""
        user = self.stream(self.connected())
        self.network.cut()
        self.clock.advance(GRACE - 0.1)
        self.assertEqual(["made"], user.told)
        self.clock.advance(0.2)
        self.assertEqual(Code.SESSION_LOST, user.reasons[0].value.code)
        self.assert_no_sessions()

    def test_silent_loss(self):
        """One that falls silent has the whole resume window, from when that is noticed."""
        user = self.stream(self.connected())
        tunnel = self.registry.find("edge-1").tunnel
        while tunnel.connected:
            self.clock.advance(0.25)
        self.network.cut()
        self.clock.advance(WINDOW - 1)
        self.assertEqual(["made"], user.told)
        self.clock.advance(1.5)
        self.assertEqual(Code.SESSION_LOST, user.reasons[0].value.code)
        self.assertEqual([], self.listener.sessions())


class ReplacementTests(ListenerTests):
    """Two sessions of one node."""

    def test_same_process(self):
        """A process that begins a new session finishes the streams of its old one beside it.

        Its GOAWAY for the old one, on another connection, may come later than the new HELLO.
        """
        idle = []
        self.listener.on_sessions_drain.append(idle.extend)
        first = self.connected()
        user = self.stream(first)
        old = self.registry.direct("edge-1")
        second = self.connected()
        self.assertTrue(self.serving(second))
        self.assertEqual([old], idle)
        self.network.pass_time(2)
        user.transport.write(b"still here")
        self.network.settle()
        self.assertEqual((b"still here", []), (bytes(first.far.received), first.ends))
        self.assertTrue(first.session.going_away)
        user.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([Code.GOING_AWAY], [code for code, _ in first.ends])
        self.assertEqual(1, len(self.listener.sessions()))
        self.assertTrue(self.serving(second))

    def test_same_process_without_connection(self):
        """An old session that its process has given up for a new one ends with REPLACED."""
        user = self.stream(self.connected())
        self.network.cut()
        second = self.connected()
        self.assertEqual(Code.REPLACED, user.reasons[0].value.code)
        self.assertTrue(self.serving(second))
        self.assertEqual(1, len(self.listener.sessions()))

    def test_second_agent(self):
        """A second agent of a node replaces the first, which is told so, and waits."""
        first = self.connected()
        second = self.connected(process=b"b" * 16)
        self.assertEqual([Code.REPLACED], [code for code, _ in first.ends])
        self.assertTrue(self.serving(second))

    def test_restarted_agent(self):
        """A restarted agent ends its predecessor's streams with SESSION_LOST."""
        first = self.connected()
        user = self.stream(first)
        self.network.cut()
        second = self.connected(process=b"b" * 16)
        self.assertEqual(Code.SESSION_LOST, user.reasons[0].value.code)
        self.assertTrue(self.serving(second))

    def test_end_of_the_replaced(self):
        """What happens to a replaced session later does not concern the registry."""
        self.connected()
        old = self.network.links[-1]
        second = self.connected()
        old.cut()
        self.network.pass_time(2)
        self.assertTrue(self.serving(second))
        self.assertEqual(1, len(self.listener.sessions()))

    def test_draining_predecessor(self):
        """An agent that drains finishes its streams beside its successor."""
        first = self.connected()
        user = self.stream(first)
        first.session.go_away("the agent is about to stop")
        self.network.settle()
        second = self.connected(process=b"b" * 16)
        self.network.pass_time(2)
        self.assertEqual(2, len(self.listener.sessions()))
        self.assertTrue(self.serving(second))
        user.transport.write(b"still here")
        self.network.settle()
        self.assertEqual(b"still here", bytes(first.far.received))
        user.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([Code.GOING_AWAY], [code for code, _ in first.ends])
        self.assertEqual(1, len(self.listener.sessions()))
        self.assertTrue(self.serving(second))

    def test_a_predecessor_serves_until_its_successor_is_there(self):
        """What comes while an agent drains goes to it, and to the next one as soon as that is."""
        first = self.connected()
        user = self.stream(first)
        first.session.go_away("the agent is about to stop")
        self.network.pass_time(10)
        self.stream(first).transport.abortConnection()
        self.network.pass_time(1)
        second = self.connected(process=b"b" * 16)
        self.stream(second)
        self.assertEqual(1, len(second.acceptor.requests))
        self.assertEqual(["made"], user.told)

    def test_abandoned_while_it_drains(self):
        """A session that is cut while it drains waits for its agent for the sake of streams only.

        A session that has a stream waits, and is found again.
        """
        for streams in (0, 1):
            agent = self.connected(process=bytes([streams]) * 16)
            users = [self.stream(agent) for _ in range(streams)]
            # Everything of the last stream has arrived before.
            self.network.pass_time(1)
            agent.session.go_away("the agent is about to stop")
            self.network.settle()
            self.network.cut()
            self.assertEqual(streams, len(self.listener.sessions()))
        agent.ask_to_resume()
        self.dial(agent)
        self.assertEqual([["made"]], [user.told for user in users])

    def test_last_words_of_a_session_that_drains(self):
        """A session waits also for the sake of what may not have arrived of its last stream."""
        agent = self.connected()
        user = self.stream(agent)
        agent.session.go_away("the agent is about to stop")
        agent.far.transport.loseWriteConnection()
        self.network.pass_time(1)
        self.network.links[-1].lost = True
        user.transport.write(b"last words")
        user.transport.loseWriteConnection()
        self.network.settle()
        (session,) = self.listener.sessions()
        self.assertFalse(session.wire.streams)
        self.network.cut()
        self.assertEqual([session], self.listener.sessions())
        agent.ask_to_resume()
        self.dial(agent)
        self.assertEqual(b"last words", bytes(agent.far.received))
        self.network.pass_time(1)

    def test_sessions_of_one_node_are_limited(self):
        """An agent that goes away and comes back as another one for ever replaces the oldest."""
        agents = []
        for number in range(MAX_SESSIONS_OF_NODE + 3):
            agents.append(self.connected(process=bytes([number]) * 16))
            agents[-1].user = self.stream(agents[-1])
            agents[-1].session.go_away("the agent is about to stop")
            self.network.settle()
        self.assertEqual(MAX_SESSIONS_OF_NODE, len(self.listener.sessions()))
        reasons = [[reason.value.code for reason in agent.user.reasons] for agent in agents]
        self.assertEqual([[Code.REPLACED]] * 3 + [[]] * MAX_SESSIONS_OF_NODE, reasons)
        self.assertTrue(self.serving(agents[-1]))
        self.connected("edge-2")
        self.assertEqual(MAX_SESSIONS_OF_NODE + 1, len(self.listener.sessions()))

    def test_sessions_that_wait_do_not_pile_up(self):
        """A node that connects with a new session each time has one."""
        for number in range(20):
            self.connected(process=bytes([number]) * 16)
            self.network.cut()
            self.assertEqual(1, len(self.listener.sessions()))

    def test_told_of_draining(self):
        """Who wants to know learns which session an agent is about to end."""
        drained = []
        self.listener.on_sessions_drain.append(drained.extend)
        agent = self.connected()
        self.assertEqual([], drained)
        agent.session.go_away("the agent is about to stop")
        self.network.settle()
        (session,) = drained
        self.assertEqual("edge-1", session.node)
        self.assertTrue(session.draining)

    def test_other_nodes(self):
        """The sessions of other nodes are left alone."""
        other = self.connected("edge-2")
        self.connected()
        self.connected()
        self.network.pass_time(1)
        self.assertEqual([], other.ends)
        self.assertEqual(2, len(self.listener.sessions()))


class SuccessionTests(ListenerTests):
    """An agent that drains, its successor, and what happens to either meanwhile."""

    grace = WINDOW

    def setUp(self):
        """Have an agent drain with a stream."""
        super().setUp()
        self.first = self.connected()
        self.link = self.network.links[-1]
        self.user = self.stream(self.first)
        self.first.session.go_away("the agent is about to stop")
        self.network.settle()

    def test_a_predecessor_serves_when_its_successor_has_left(self):
        """An agent that drains is found again when the next one ends before it."""
        second = self.connected(process=b"b" * 16)
        second.session.go_away("this agent is about to stop, too")
        self.network.pass_time(1)
        self.assertEqual([Code.GOING_AWAY], [code for code, _ in second.ends])
        self.stream(self.first).transport.abortConnection()
        self.assertEqual((["made"], []), (self.user.told, self.first.ends))

    def test_a_predecessor_serves_when_its_successor_is_lost(self):
        """Dials wait for the next one a moment, and then go by the one that drains."""
        second = self.connected(process=b"b" * 16)
        self.network.links[-1].cut()
        self.network.settle()
        found = self.registry.find("edge-1")
        waits = found.open_stream("192.0.2.80", 80, 15.0, "r")
        self.assertTrue(self.serving(second))
        changed = []
        self.registry.on_direct_changed.append(changed.append)
        self.clock.advance(HESITATION - 0.1)
        self.assertTrue(self.serving(second))
        self.clock.advance(0.2)
        self.assertEqual(["edge-1"], changed, "siblings are told")
        self.assertTrue(self.serving(self.first))
        self.network.settle()
        self.first.acceptor.requests[-1].accept()
        self.network.settle()
        self.successResultOf(waits).abort(Code.CANCELLED, "")
        self.stream(self.first).transport.abortConnection()
        second.ask_to_resume()
        self.dial(second)
        self.assertTrue(self.serving(second))
        self.assertEqual(["made"], self.user.told)

    def test_a_predecessor_that_drained_is_killed_first(self):
        """Its streams end when it could be back and its successor is there."""
        self.network.cut()
        self.clock.advance(1)
        self.connected(process=b"b" * 16)
        self.clock.advance(RETURN_PATIENCE - 1.1)
        self.assertEqual([], self.user.reasons)
        self.clock.advance(0.2)
        self.assert_restarted()

    def test_a_predecessor_that_drained_is_long_away(self):
        """Its streams end as soon as its successor comes."""
        self.network.cut()
        self.clock.advance(RETURN_PATIENCE + 1)
        self.assertEqual([], self.user.reasons)
        self.connected(process=b"b" * 16)
        self.assert_restarted()

    def test_a_predecessor_that_drains_is_killed_later(self):
        """Its streams end in the same time when its successor has been there before."""
        self.connected(process=b"b" * 16)
        self.network.pass_time(3)
        self.link.cut()
        self.network.settle()
        self.clock.advance(RETURN_PATIENCE - 0.1)
        self.assertEqual([], self.user.reasons)
        self.clock.advance(0.2)
        self.assert_restarted()

    def test_a_predecessor_that_drains_comes_back(self):
        """An agent that lives has its streams, whoever has come meanwhile."""
        self.connected(process=b"b" * 16)
        self.link.cut()
        self.network.settle()
        self.clock.advance(RETURN_PATIENCE - 0.1)
        self.first.ask_to_resume()
        self.dial(self.first)
        self.network.pass_time(RETURN_PATIENCE)
        self.assertEqual([], self.user.reasons)

    def test_a_further_session_of_a_process_ends_none_of_its_own(self):
        """One that drains waits for its agent beside another session of the same process."""
        self.connected()
        self.link.cut()
        self.network.settle()
        self.clock.advance(RETURN_PATIENCE + 1)
        self.assertEqual([], self.user.reasons)

    def test_the_successors_own_session_is_known_while_it_does_not_serve(self):
        """Its agent is refused when it finds the server by a second address, as at other times."""
        second = self.connected(process=b"b" * 16)
        self.network.links[-1].cut()
        self.network.settle()
        self.clock.advance(HESITATION)
        self.assertTrue(self.serving(self.first))
        again = self.agent(process=b"b" * 16)
        held = {"held": second.answer.process.hex()}
        again.hello = replace(again.hello, properties={**again.hello.properties, **held})
        self.refused(again, Code.ALREADY_CONNECTED, "another of its addresses")

    def assert_restarted(self):
        """Check that the stream has ended because its agent has been restarted."""
        (reason,) = self.user.reasons
        self.assertEqual(Code.SESSION_LOST, reason.value.code)
        self.assertIn("has been restarted", reason.value.text)


class ConnectionTests(ListenerTests):
    """Who is told that a session has lost its connection, and that it has one again."""

    def setUp(self):
        """Have an agent; keep what is told from now on."""
        super().setUp()
        self.connected_agent = self.connected()
        self.session = self.registry.direct("edge-1")
        self.changes = []
        self.idle = []
        self.registry.on_direct_changed.append(
            lambda node: self.changes.append((node, self.session.connected))
        )
        self.listener.on_sessions_drain.append(self.idle.extend)

    def test_lost(self):
        """The loss is told once, and what is idle in the session is closed."""
        self.network.cut()
        self.assertEqual([("edge-1", False)], self.changes)
        self.assertEqual([self.session], self.idle)

    def test_silent(self):
        """So is the loss of a connection on which nothing comes any more."""
        self.network.links[-1].lost = True
        while self.session.connected:
            self.clock.advance(0.25)
        self.network.cut()
        self.assertEqual([("edge-1", False)], self.changes)

    def test_resumed(self):
        """The return is told, and streams that were open go on."""
        user = self.stream(self.connected_agent)
        self.network.cut()
        self.connected_agent.ask_to_resume()
        self.dial(self.connected_agent)
        self.assertEqual([("edge-1", False), ("edge-1", True)], self.changes)
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual(b"goes on", bytes(self.connected_agent.far.received))

    def test_moved(self):
        """A session that moves from one connection to the next has lost nothing."""
        self.connected_agent.ask_to_resume()
        self.dial(self.connected_agent)
        self.network.links[0].cut()
        self.network.settle()
        self.assertTrue(self.session.connected)
        self.assertEqual(([], []), (self.changes, self.idle))

    def test_ended(self):
        """The end of a session is told once, and is no loss."""
        self.connected_agent.session.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.settle()
        self.network.cut()
        self.assertEqual(([("edge-1", False)], []), (self.changes, self.idle))


class AwayTests(ListenerTests):
    """Dials to a node whose agent has lost its connection."""

    def setUp(self):
        """Have an agent fall silent, which leaves its session the whole resume window."""
        super().setUp()
        self.connected_agent = self.connected()
        self.session = self.registry.direct("edge-1")
        self.network.links[-1].lost = True
        while self.session.connected:
            self.clock.advance(0.25)
        self.network.cut()

    def dial_node(self):
        """Open a stream to the node; give what becomes of it."""
        return self.registry.find("edge-1").open_stream("192.0.2.80", 80, 15.0, "r")

    def come_back(self):
        """Have the agent resume its session."""
        self.connected_agent.ask_to_resume()
        self.dial(self.connected_agent)

    def assert_failed(self, dial, seconds):
        """Check that a dial has failed, with the node and the time in its text."""
        error = self.failureResultOf(dial, StreamFailed).value
        self.assertEqual(Code.SESSION_LOST, error.code)
        self.assertIn("node edge-1", error.text)
        self.assertIn(f"{seconds} s ago", error.text)

    def accept(self):
        """Have the agent accept the newest of the streams that it was asked for."""
        self.connected_agent.acceptor.requests[-1].accept()
        self.network.settle()

    def test_soon_back(self):
        """A dial waits for an agent that is back in time, and goes on."""
        dial = self.dial_node()
        self.clock.advance(RETURN_PATIENCE - 0.1)
        self.assertNoResult(dial)
        self.come_back()
        self.accept()
        self.successResultOf(dial)

    def test_soon_back_beside_a_way_that_drains(self):
        """Nor does it go by another server that has lost the agent as well, or is about to."""
        way = Way("edge-1")
        way.draining = True
        self.registry.add_remote(way)
        dial = self.dial_node()
        self.session.connection_lost()
        self.assertNoResult(dial)
        self.come_back()
        self.accept()
        self.assertEqual([], self.connected_agent.ends)
        self.assertNotEqual("by the sibling", self.successResultOf(dial))
        self.registry.remove_remote(way)

    def test_told_twice(self):
        """The ends of two connections may be told in a row; its return is that of both."""
        self.session.connection_lost()
        self.come_back()
        dial = self.dial_node()
        self.network.settle()
        self.clock.advance(RETURN_PATIENCE + 1)
        self.accept()
        self.successResultOf(dial)

    def test_waited_for_too_long(self):
        """Dials that wait fail together when the agent is not back in time."""
        dials = [self.dial_node() for _ in range(3)]
        self.clock.advance(RETURN_PATIENCE)
        for dial in dials:
            self.assert_failed(dial, 5)

    def test_long_away(self):
        """Later ones fail at once, and say for how long the agent has been away."""
        self.clock.advance(12)
        self.assert_failed(self.dial_node(), 12)
        self.assertEqual(1, self.context.counters.dials[Code.SESSION_LOST])

    def test_back_after_long(self):
        """When the agent is back they are served again, also after a further short loss."""
        self.clock.advance(12)
        self.come_back()
        for _ in range(2):
            dial = self.dial_node()
            self.network.settle()
            self.accept()
            self.successResultOf(dial)
            self.network.cut()
            self.come_back()

    def test_streams_wait_on(self):
        """Streams that were open have nothing to do with it."""
        self.come_back()
        user = self.stream(self.connected_agent)
        self.network.links[-1].lost = True
        while self.session.connected:
            self.clock.advance(0.25)
        self.network.cut()
        self.clock.advance(2 * RETURN_PATIENCE)
        self.assert_failed(self.dial_node(), 10)
        self.come_back()
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual(b"goes on", bytes(self.connected_agent.far.received))

    def test_another_way(self):
        """New dials go at once by a sibling that has the node, those that wait when it is time."""
        waits = self.dial_node()
        way = Way("edge-1")
        self.registry.add_remote(way)
        self.addCleanup(self.registry.remove_remote, way)
        self.assertIs(way, self.registry.find("edge-1"))
        self.clock.advance(RETURN_PATIENCE)
        self.assertEqual("by the sibling", self.successResultOf(waits))

    def test_session_ends_first(self):
        """A dial that waits ends with the session, and nobody waits for the agent any more."""
        dial = self.dial_node()
        self.session.tunnel.close(Code.SESSION_LOST, "the agent has been restarted")
        self.assertIn("restarted", self.failureResultOf(dial, StreamFailed).value.text)

    def test_as_long_as_a_living_agent_takes(self):
        """The time is that of an agent's first four attempts, and a moment for the last one."""
        attempts = sum(FIRST_DELAY * 2**number for number in range(4))
        self.assertEqual(4.5, attempts)
        self.assertLess(attempts, RETURN_PATIENCE)


class SeveralServersTests(ListenerTests):
    """What agents say of other servers, and what they are told of them."""

    def holding(self, agent, *processes):
        """Have an agent say in its next HELLO with which processes it has sessions."""
        held = ",".join(process.hex() for process in processes)
        agent.hello = replace(agent.hello, properties={**agent.hello.properties, "held": held})

    def test_already_connected(self):
        """An agent that finds a server by a second address is refused, and keeps its session."""
        first = self.connected()
        user = self.stream(first)
        second = self.agent()
        self.holding(second, b"o" * 16, first.answer.process)
        events = []
        globalLogPublisher.addObserver(events.append)
        self.addCleanup(globalLogPublisher.removeObserver, events.append)
        self.refused(second, Code.ALREADY_CONNECTED, "another of its addresses")
        self.assertEqual([], events, "that an agent looks for other servers is no news")
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual((b"goes on", []), (bytes(first.far.received), first.ends))
        self.assertTrue(self.serving(first))

    def test_resumption_is_not_refused(self):
        """A session goes on over a new connection whatever its agent says it has."""
        agent = self.connected()
        user = self.stream(agent)
        self.holding(agent, agent.answer.process)
        agent.ask_to_resume()
        self.dial(agent)
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual((b"goes on", []), (bytes(agent.far.received), agent.ends))

    def test_other_servers(self):
        """Sessions with other servers keep nobody out."""
        agent = self.agent()
        self.holding(agent, b"o" * 16)
        self.dial(agent)
        self.assertTrue(self.serving(agent))

    def test_another_agent_of_the_node(self):
        """A second agent of a node replaces the first, whatever it says it has."""
        first = self.connected()
        second = self.agent(process=b"b" * 16)
        self.holding(second, first.answer.process)
        self.dial(second)
        self.assertEqual([Code.REPLACED], [code for code, _ in first.ends])
        self.assertTrue(self.serving(second))

    def test_session_that_the_server_does_not_have(self):
        """An agent that takes itself for connected, and is not, is let in."""
        first = self.connected()
        process = first.answer.process
        self.listener.close_sessions(Code.INTERNAL, "")
        second = self.agent()
        self.holding(second, process)
        self.dial(second)
        self.assertTrue(self.serving(second))

    def test_draining_session(self):
        """A session that its agent is about to end keeps no new one out."""
        first = self.connected()
        self.stream(first)
        first.session.go_away("the agent is about to stop")
        self.network.settle()
        second = self.agent()
        self.holding(second, first.answer.process)
        self.dial(second)
        self.assertTrue(self.serving(second))

    def test_held_that_makes_no_sense(self):
        """A list that is none is a violation of the protocol."""
        agent = self.agent()
        self.holding(agent, b"short")
        self.refused(agent, Code.PROTOCOL, "held")

    def test_number_of_servers(self):
        """HELLO says how many servers there are at the moment, where that is known."""
        agent = self.connected()
        self.assertNotIn("servers", agent.answer.properties)
        self.replicas = 3
        agent.ask_to_resume()
        self.dial(agent)
        self.assertEqual("3", agent.answer.properties["servers"])
        self.replicas = 2
        self.assertEqual("2", self.connected("edge-2").answer.properties["servers"])


class DrainTests(ListenerTests):
    """The end of the server."""

    def test_without_streams(self):
        """Sessions without streams end by themselves once both steps are through."""
        agent = self.connected()
        self.listener.drain("the server is about to stop")
        self.network.pass_time(1)
        self.assertEqual([Code.GOING_AWAY], [code for code, _ in agent.ends])
        self.assert_no_sessions()

    def test_with_streams(self):
        """Streams go on, those that have no other way too, and the last end is the session's."""
        agent = self.connected()
        user = self.stream(agent)
        self.listener.drain("the server is about to stop")
        self.network.pass_time(20)
        self.assertEqual(["made"], user.told)
        late = self.stream(agent)
        user.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual(["made"], late.told)
        late.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([], self.listener.sessions())

    def test_disconnected(self):
        """A session without a connection ends at once: its agent could not come back."""
        user = self.stream(self.connected())
        self.network.cut()
        self.listener.drain("the server is about to stop")
        self.assertEqual([], self.listener.sessions())
        self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)

    def test_disconnected_later(self):
        """One that loses its connection while it drains ends at once, too."""
        user = self.stream(self.connected())
        self.listener.drain("the server is about to stop")
        self.network.cut()
        self.assertEqual([], self.listener.sessions())
        self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)

    def test_new_agents(self):
        """Whoever connects while the server drains is told to go elsewhere."""
        self.listener.drain("the server is about to stop")
        self.refused(self.agent(), Code.GOING_AWAY, "about to stop")

    def test_close_sessions(self):
        """What has not ended by itself is ended with a reason."""
        agent = self.connected()
        user = self.stream(agent)
        self.listener.drain("the server is about to stop")
        self.listener.close_sessions(Code.GOING_AWAY, "the server has stopped")
        self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)
        self.network.settle()
        self.assertEqual([(Code.GOING_AWAY, "the server has stopped")], agent.ends)
        self.assertEqual([], self.network.open_links)


class RevocationTests(ListenerTests):
    """Nodes that are revoked while they are connected."""

    def test_ends(self):
        """A revoked node's sessions end with REVOKED, those that drain and those that wait too."""
        agent = self.connected()
        user = self.stream(agent)
        agent.session.go_away("about to stop")
        self.network.settle()
        waiting = self.connected(process=b"b" * 16)
        self.network.links[-1].cut()
        self.revoked.add(b"edge-1".hex())
        self.listener.revoke("edge-1")
        self.network.settle()
        self.assertEqual([], self.listener.sessions())
        self.assertEqual([Code.REVOKED], [code for code, _ in agent.ends])
        self.assertEqual(Code.REVOKED, user.reasons[0].value.code)
        self.assertFalse(waiting.session.connected)

    def test_others(self):
        """Other nodes, and the node's session of a newer enrolment, go on."""
        other = self.connected("edge-2")
        self.connected()
        self.revoked.add("ab")
        self.listener.revoke("edge-1")
        self.network.settle()
        self.assertEqual(2, len(self.listener.sessions()))
        self.assertEqual([], other.ends)


class LogTests(ListenerTests):
    """What the server's operator reads."""

    def setUp(self):
        """Keep what is logged."""
        super().setUp()
        self.events = []
        globalLogPublisher.addObserver(self.events.append)
        self.addCleanup(globalLogPublisher.removeObserver, self.events.append)

    def lines(self):
        """Return what the listener has logged."""
        from twisted.logger import formatEvent

        return [
            formatEvent(event)
            for event in self.events
            if event.get("log_namespace", "").endswith("AgentListener")
        ]

    def test_came_to_nothing(self):
        """A connection that does not become a session is told of once, with the reason."""
        agent = self.agent()
        agent.claim("host=edge-9")
        self.dial(agent)
        [line] = self.lines()
        self.assertIn("does not cover host=edge-9", line)
        self.assertEqual({"not_authorized": 1}, self.listener.refusals)

    def test_came_to_nothing_again_and_again(self):
        """Of those that come to nothing for one reason one is told of in a minute."""
        agent = self.agent()
        agent.claim("host=edge-9")
        for _ in range(5):
            self.dial(agent)
        self.assertEqual(1, len(self.lines()))
        self.clock.advance(60)
        self.dial(agent)
        self.assertIn("(4 more like this were not shown)", self.lines()[1])

    def test_strangers(self):
        """Each thing that TLS finds wrong is told of by itself."""
        for problem in ("it is {old}", "it is foreign", "it is {old}", "it is foreign"):
            connection = self.listener.buildProtocol(None)
            connection.makeConnection(StringTransport())
            connection.connectionLost(Failure(refusal(problem)))
        first, second = self.lines()
        self.assertIn("session: it is {old}", first)
        self.assertIn("session: it is foreign", second)

    def test_session(self):
        """A session's beginning, return and end are told, with the node."""
        agent = self.connected()
        self.network.cut()
        agent.ask_to_resume()
        self.dial(agent)
        agent.session.close(Code.DONE, "good-bye")
        self.network.settle()
        began, back, ended = self.lines()
        for line in (began, back, ended):
            self.assertTrue(line.startswith("edge-1: "), line)
        self.assertIn("good-bye", ended)

    def test_enrolment(self):
        """A connection that was for enrolment is not called one that came to nothing."""
        agent = self.agent()
        creator = ClientContexts(agent.credentials, ENROLMENT_PROTOCOL).creator("server.test")
        other = HalfCloseUser()
        factory = mock.Mock(spec_set=["buildProtocol", "doStart", "doStop"])
        factory.buildProtocol.return_value = other
        self.network.connect(TLSMemoryBIOFactory(creator, True, factory, self.clock))
        self.network.settle()
        other.connectionLost(Failure(ConnectionLost()))
        self.network.cut()
        self.assertEqual([], self.lines())
