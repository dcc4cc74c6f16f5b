"""The agents' listener: accepted and rejected connections, its drain, and its log."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from twisted.internet.error import ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.logger import LogLevel
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from tests.logged import Logged
from tests.server.agents import ListenerTests, ignore_session
from tests.tunnel.memory import HalfCloseUser
from yurttunnel import __version__
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL, ClientContexts
from yurttunnel.pki.identity import identity_from_certificate
from yurttunnel.pki.names import BadIdentity
from yurttunnel.pki.tls_errors import rejection_error
from yurttunnel.server import agents
from yurttunnel.server.registry import NodeNotConnected
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import NO_SESSION


class NewSessionTests(ListenerTests):
    """A certificate and a HELLO make a session."""

    def test_registered(self):
        """A node is found by the identifiers in its certificate if the HELLO claims none."""
        agent = self.connected(identifiers="host=edge-1&host=camera&ipv4=192.0.2.7")
        for host in ("edge-1", "camera", "192.0.2.7"):
            found = self.registry.find(host)
            self.assertEqual("edge-1", found.node)
            self.assertEqual(agent.session.session_id, found.tunnel.session_id)
        self.assertEqual(1, len(self.listener.sessions()))

    def test_answer(self):
        """The server's HELLO has its limits and version, and a session id of its own."""
        first, second = self.connected(), self.connected("edge-2")
        self.assertEqual(self.limits, first.answer.limits)
        self.assertEqual(__version__, first.answer.properties["software"])
        self.assertEqual(first.answer.process, second.answer.process)
        ids = {first.answer.session, second.answer.session, NO_SESSION}
        self.assertEqual(3, len(ids))

    def test_other_settings(self):
        """Changed settings apply to new sessions; a resumed one keeps its own."""
        agent = self.connected()
        before = agent.session
        limits = replace(self.limits, resume_window=0)
        self.listener.settings = replace(self.listener.settings, limits=limits)
        self.assertEqual(0, self.connected("edge-2").answer.limits.resume_window)
        self.network.cut()
        agent.request_resumption()
        self.dial(agent)
        self.assertIs(before, agent.session)

    def test_snapshot(self):
        """The snapshot of a session has values of the certificate and the HELLO."""
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
        """A claim beyond the certificate is rejected, with what is not covered."""
        agent = self.agent()
        agent.claim("host=edge-1&host=edge-2")
        self.refused(agent, Code.NOT_AUTHORIZED, "edge-1", "host=edge-2")

    def test_default_route_not_covered(self):
        """A claimed default route must be covered, too."""
        agent = self.agent()
        agent.claim("host=edge-1&default-route=true")
        self.refused(agent, Code.NOT_AUTHORIZED, "default-route")

    def test_identifiers_that_cannot_be_parsed(self):
        """A malformed claim is a protocol violation."""
        agent = self.agent()
        agent.claim("host")
        self.refused(agent, Code.PROTOCOL, "edge-1", "key=value")

    def test_certificate_that_names_no_node(self):
        """A certificate of the authority that is not a node's is rejected."""
        agent = self.agent()
        agent.credentials = self.issuer.caller()
        self.refused(agent, Code.NOT_AUTHORIZED, "not a node's")

    def test_identity_function(self):
        """The caller's function determines the identity in a certificate, and may reject it."""

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
        """If TLS ever accepted a connection without a certificate, the listener would not."""
        agent = self.agent()
        with mock.patch.object(SessionConnection, "peer_certificate", None):
            self.refused(agent, Code.NOT_AUTHORIZED, "no certificate")

    def test_revoked(self):
        """A revoked node gets no session."""
        agent = self.agent()
        self.revoked.add(b"edge-1".hex())
        words = ("node edge-1 is revoked", "no longer a node of the cluster")
        self.refused(agent, Code.REVOKED, *words)

    def test_agents_open_no_streams(self):
        """The session of an agent that opens a stream is closed."""
        agent = self.connected()
        opened = agent.session.open_stream("127.0.0.1", 22, 15.0, "r")
        self.network.settle()
        self.assertEqual(Code.PROTOCOL, self.failureResultOf(opened, StreamFailed).value.code)
        self.assertFalse(agent.session.connected)
        self.assertEqual(1, self.context.counters.session_ends[Code.PROTOCOL])


class UnfinishedTests(ListenerTests):
    """Connections without a complete HELLO."""

    def setUp(self):
        """Allow three of them."""
        self.patch(agents, "MAX_UNFINISHED", 3)
        super().setUp()

    def silent(self):
        """Connect and stay silent."""
        agent = self.agent()
        agent.connection_ready = lambda connection: None
        self.dial(agent)
        return agent

    def test_the_oldest_makes_room(self):
        """MAX_UNFINISHED connections may be unfinished; one more evicts the oldest."""
        silent = [self.silent() for _ in range(3)]
        self.connected()
        self.assertEqual([False, True, True], [one.error is None for one in silent])
        self.silent()
        self.silent()
        self.assertEqual([False, False, True], [one.error is None for one in silent])
        self.assertEqual(2, self.listener.refusals["overloaded"])
        self.assertEqual(4, len(self.network.open_links))

    def test_others_of_the_port_do_not_count(self):
        """A connection that was handed over does not count, and ends with the server."""
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
        """A connection with a session, or with a rejected one, is not unfinished."""
        for number in range(4):
            self.connected(f"edge-{number}")
        agent = self.agent()
        agent.claim("nonsense")
        for _ in range(4):
            self.refused(agent, Code.PROTOCOL)

    def test_unused_sessions(self):
        """A session instead of the requested one counts until the agent uses it."""
        warnings = Logged(self, level=LogLevel.warn)
        for _ in range(4):
            agent = self.agent()
            agent.hello = replace(agent.hello, session=b"s" * 16)
            agent.hello_received = ignore_session
            self.dial(agent)
        self.assertEqual(3, len(self.listener.sessions()))
        self.assertEqual(3, len(self.network.open_links))
        self.assertEqual({"overloaded": 1}, self.listener.refusals)
        [warning] = warnings
        self.assertIn("newer connections have no session that is used either", warning)

    def test_ended_by_close_sessions(self):
        """Unfinished connections end with the server."""
        self.silent()
        self.listener.close_sessions(Code.GOING_AWAY, "the server has stopped")
        self.network.settle()
        self.assertEqual([], self.network.open_links)


class ConnectionTests(ListenerTests):
    """Notifications when a session has lost or regained its connection."""

    def setUp(self):
        """Connect an agent; record further notifications."""
        super().setUp()
        self.connected_agent = self.connected()
        self.session = self.registry.direct("edge-1")
        self.changes = []
        self.idle = []
        self.registry.on_direct_changed.append(
            lambda node: self.changes.append((node, self.session.connected))
        )
        self.listener.on_sessions_draining.append(self.idle.extend)

    def test_lost(self):
        """The loss is reported once, and idle connections in the session are closed."""
        self.network.cut()
        self.assertEqual([("edge-1", False)], self.changes)
        self.assertEqual([self.session], self.idle)

    def test_silent(self):
        """The loss of a silent connection is reported once, too."""
        self.network.links[-1].lost = True
        while self.session.connected:
            self.clock.advance(0.25)
        self.network.cut()
        self.assertEqual([("edge-1", False)], self.changes)

    def test_resumed(self):
        """The return is reported, and open streams continue."""
        user = self.stream(self.connected_agent)
        self.network.cut()
        self.connected_agent.request_resumption()
        self.dial(self.connected_agent)
        self.assertEqual([("edge-1", False), ("edge-1", True)], self.changes)
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual(b"goes on", bytes(self.connected_agent.far.received))

    def test_moved(self):
        """A session that moves from one connection to the next has lost nothing."""
        self.connected_agent.request_resumption()
        self.dial(self.connected_agent)
        self.network.links[0].cut()
        self.network.settle()
        self.assertTrue(self.session.connected)
        self.assertEqual(([], []), (self.changes, self.idle))

    def test_ended(self):
        """The end of a session is reported once, and is not a loss."""
        self.connected_agent.session.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.settle()
        self.network.cut()
        self.assertEqual(([("edge-1", False)], []), (self.changes, self.idle))


class DrainTests(ListenerTests):
    """The shutdown of the server."""

    def test_without_streams(self):
        """Sessions without streams end after both steps of GOAWAY."""
        agent = self.connected()
        self.listener.drain("the server is about to stop")
        self.network.pass_time(1)
        self.assertEqual([Code.GOING_AWAY], [code for code, _ in agent.ends])
        self.assert_no_sessions()

    def test_with_streams(self):
        """Streams continue, also new ones without another route; the session ends with the last."""
        agent = self.connected()
        user = self.stream(agent)
        self.listener.drain("the server is about to stop")
        self.network.pass_time(20)
        self.assertEqual(["made"], user.events)
        late = self.stream(agent)
        user.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual(["made"], late.events)
        late.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([], self.listener.sessions())

    def test_disconnected(self):
        """A session without a connection ends at once: its agent could not reconnect."""
        user = self.stream(self.connected())
        self.network.cut()
        self.listener.drain("the server is about to stop")
        self.assertEqual([], self.listener.sessions())
        self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)

    def test_disconnected_later(self):
        """A session that loses its connection during the drain ends at once, too."""
        user = self.stream(self.connected())
        self.listener.drain("the server is about to stop")
        self.network.cut()
        self.assertEqual([], self.listener.sessions())
        self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)

    def test_new_agents(self):
        """Agents that connect during the drain are rejected with GOING_AWAY."""
        self.listener.drain("the server is about to stop")
        self.refused(self.agent(), Code.GOING_AWAY, "about to stop")

    def test_close_sessions(self):
        """The remaining sessions are closed with a reason."""
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
        """A revoked node's sessions end with REVOKED, including draining and disconnected ones."""
        agent = self.connected()
        user = self.stream(agent)
        agent.session.drain("about to stop")
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

    def test_all_that_are(self):
        """Revocations that are known after nodes have been accepted end all of their sessions."""
        agents = {node: self.connected(node) for node in ("edge-1", "edge-2", "edge-3")}
        self.revoked.update(node.encode().hex() for node in ("edge-1", "edge-3"))
        self.listener.revoke_all()
        self.network.settle()
        ends = {node: [code for code, _ in agent.ends] for node, agent in agents.items()}
        gone = [Code.REVOKED]
        self.assertEqual({"edge-1": gone, "edge-2": [], "edge-3": gone}, ends)

    def test_others(self):
        """Other nodes, and the node's session of a later enrolment, continue."""
        other = self.connected("edge-2")
        self.connected()
        self.revoked.add("ab")
        self.listener.revoke("edge-1")
        self.network.settle()
        self.assertEqual(2, len(self.listener.sessions()))
        self.assertEqual([], other.ends)


class LogTests(ListenerTests):
    """The log for the server's operator."""

    def setUp(self):
        """Store the log."""
        super().setUp()
        self.lines = Logged(self, "AgentListener")

    def test_failed_connection(self):
        """A connection that does not become a session is logged once, with the reason."""
        agent = self.agent()
        agent.claim("host=edge-9")
        self.dial(agent)
        [line] = self.lines
        self.assertIn("does not cover host=edge-9", line)
        self.assertEqual({"not_authorized": 1}, self.listener.refusals)

    def test_repeated_failures(self):
        """Connections that fail for the same reason are logged once a minute."""
        agent = self.agent()
        agent.claim("host=edge-9")
        for _ in range(5):
            self.dial(agent)
        self.assertEqual(1, len(self.lines))
        self.clock.advance(60)
        self.dial(agent)
        self.assertIn("(4 more like this were not shown)", self.lines[1])

    def test_distinct_tls_errors(self):
        """Different TLS errors are logged separately."""
        for problem in ("it is {old}", "it is foreign", "it is {old}", "it is foreign"):
            connection = self.listener.buildProtocol(None)
            connection.makeConnection(StringTransport())
            connection.connectionLost(Failure(rejection_error(problem)))
        first, second = self.lines
        self.assertIn("session: it is {old}", first)
        self.assertIn("session: it is foreign", second)

    def test_session(self):
        """A session's start, resumption and end are logged, with the node."""
        agent = self.connected()
        self.network.cut()
        agent.request_resumption()
        self.dial(agent)
        agent.session.close(Code.DONE, "good-bye")
        self.network.settle()
        began, back, ended = self.lines
        for line in (began, back, ended):
            self.assertTrue(line.startswith("edge-1: "), line)
        self.assertIn("good-bye", ended)

    def test_enrolment(self):
        """A connection for an enrolment is not logged as one that failed."""
        agent = self.agent()
        creator = ClientContexts(agent.credentials, ENROLMENT_PROTOCOL).creator("server.test")
        other = HalfCloseUser()
        factory = mock.Mock(spec_set=["buildProtocol", "doStart", "doStop"])
        factory.buildProtocol.return_value = other
        self.network.connect(TLSMemoryBIOFactory(creator, True, factory, self.clock))
        self.network.settle()
        other.connectionLost(Failure(ConnectionLost()))
        self.network.cut()
        self.assertEqual([], self.lines)
