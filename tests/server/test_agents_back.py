"""The agents' listener: agents that reconnect, that are away, and that know other servers."""

from __future__ import annotations

from dataclasses import replace

from tests.logged import Logged
from tests.server.agents import GRACE, WINDOW, ListenerTests, Route, ignore_session
from yurttunnel.agent.connection_group import FIRST_DELAY
from yurttunnel.server.node_session import RECONNECT_TIMEOUT
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import NO_SESSION


class ResumeTests(ListenerTests):
    """Agents that reconnect."""

    def lose(self, agent):
        """Cut the agent's connection, and request its session in HELLO."""
        self.network.cut()
        agent.request_resumption()

    def assert_new(self, agent, before):
        """Check that an agent has another session than before, the only one of its node."""
        self.assertNotEqual(before.session_id, agent.session.session_id)
        self.assertTrue(self.serving(agent))

    def test_same_agent(self):
        """The same process of the same node resumes its session, and its streams continue."""
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
        self.assertEqual((["made"], []), (user.events, agent.ends))

    def test_wrong_node(self):
        """A node that requests another's session gets a new one; the other's is not affected."""
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
        """A closed session is not resumed; the new one starts on the same connection."""
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
        """A session moves to the new connection; the end of the old one does not affect it."""
        agent = self.connected()
        user = self.stream(agent)
        old = self.network.links[-1]
        old.lost = True
        agent.session.connection_silent()
        agent.request_resumption()
        self.assertTrue(self.registry.find("edge-1").tunnel.connected)
        self.dial(agent)
        self.assertTrue(agent.session.connected)
        self.assertTrue(old.server_io.disconnecting)
        old.cut()
        user.transport.write(b"x")
        self.network.pass_time(2)
        self.assertTrue(self.registry.find("edge-1").tunnel.connected)
        self.assertEqual(["made"], user.events)

    def wanting(self, answered=ignore_session):
        """Connect an agent that wants a session of another server; ``answered`` handles HELLO."""
        agent = self.agent()
        agent.hello = replace(agent.hello, session=b"s" * 16)
        agent.hello_received = answered
        return self.dial(agent)

    def test_refused_by_the_agent(self):
        """A session that the agent refuses, because it wants that of another server, never serves.

        Siblings would move their dials here, where they would fail.
        """
        seen = []
        self.registry.on_direct_changed.append(seen.append)
        self.listener.on_ended.append(lambda node, reason: seen.append(reason))
        code = Code.GOING_AWAY
        self.wanting(lambda connection, hello: connection.refuse(code, "not here"))
        self.assertEqual([], seen)
        self.assert_no_sessions()

    def test_refused_beside_another_agent(self):
        """It does not replace the session of another agent of the node."""
        other = self.connected(process=b"b" * 16)
        user = self.stream(other)
        self.wanting(lambda connection, hello: connection.refuse(Code.GOING_AWAY, "not here"))
        self.assertEqual(([], []), (other.ends, user.reasons))
        self.assertTrue(self.serving(other))

    def test_lost_before_use(self):
        """A session instead of the requested one ends with its connection until it is used."""
        link = self.wanting()
        self.assertEqual(1, len(self.listener.sessions()))
        self.assertIsNone(self.registry.find_or_none("edge-1"))
        link.cut()
        self.assert_no_sessions()

    def test_resumed_before_use(self):
        """It serves if the agent resumes it on another connection."""
        self.wanting()
        agent = self.agent()
        agent.hello = replace(agent.hello, session=self.listener.sessions()[0].session_id)
        self.dial(agent)
        self.network.links[0].cut()
        self.network.settle()
        self.assertTrue(self.serving(agent))
        self.assertTrue(agent.session.connected)

    def test_revoked_meanwhile(self):
        """A revoked node does not get its session back."""
        agent = self.connected()
        self.lose(agent)
        self.revoked.add(b"edge-1".hex())
        self.dial(agent)
        self.assertEqual(Code.REVOKED, agent.error.code)

    def test_impossible_position(self):
        """An agent that has received more than was sent loses its session, and may start anew."""
        agent = self.connected()
        self.lose(agent)
        agent.hello = replace(agent.hello, received=1 << 40)
        self.dial(agent)
        # Detected before the server's HELLO, so CLOSE is its first frame.
        self.assertEqual(Code.PROTOCOL, agent.error.code)
        self.assert_no_sessions()
        agent.hello = replace(agent.hello, session=NO_SESSION, received=0)
        self.dial(agent)
        self.assertTrue(self.serving(agent))

    def test_description_follows(self):
        """After a resumption the certificate and the enrolment are the agent's current ones."""
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

    def test_reset_connection(self):
        """After a reset connection the agent has GRACE to reconnect."""
        user = self.stream(self.connected())
        self.network.cut()
        self.clock.advance(GRACE - 0.1)
        self.assertEqual(["made"], user.events)
        self.clock.advance(0.2)
        self.assertEqual(Code.SESSION_LOST, user.reasons[0].value.code)
        self.assert_no_sessions()

    def test_silent_connection(self):
        """A silent one has the whole resume window, from its detection."""
        user = self.stream(self.connected())
        tunnel = self.registry.find("edge-1").tunnel
        while tunnel.connected:
            self.clock.advance(0.25)
        self.network.cut()
        self.clock.advance(WINDOW - 1)
        self.assertEqual(["made"], user.events)
        self.clock.advance(1.5)
        self.assertEqual(Code.SESSION_LOST, user.reasons[0].value.code)
        self.assertEqual([], self.listener.sessions())


class DisconnectedAgentTests(ListenerTests):
    """Dials to a node whose agent has lost its connection."""

    def setUp(self):
        """Let an agent fall silent, which leaves its session the whole resume window."""
        super().setUp()
        self.connected_agent = self.connected()
        self.session = self.registry.direct("edge-1")
        self.network.links[-1].lost = True
        while self.session.connected:
            self.clock.advance(0.25)
        self.network.cut()

    def dial_node(self):
        """Open a stream to the node; return the dial's result."""
        return self.registry.find("edge-1").open_stream("192.0.2.80", 80, 15.0, "r")

    def come_back(self):
        """Resume the agent's session."""
        self.connected_agent.request_resumption()
        self.dial(self.connected_agent)

    def assert_failed(self, dial, seconds):
        """Check that a dial has failed, with the node and the time in its text."""
        error = self.failureResultOf(dial, StreamFailed).value
        self.assertEqual(Code.SESSION_LOST, error.code)
        self.assertIn("node edge-1", error.text)
        self.assertIn(f"{seconds} s ago", error.text)

    def accept(self):
        """Accept the latest stream at the agent."""
        self.connected_agent.acceptor.requests[-1].accept()
        self.network.settle()

    def test_dial_waits(self):
        """A dial waits for an agent that is back in time, and continues."""
        dial = self.dial_node()
        self.clock.advance(RECONNECT_TIMEOUT - 0.1)
        self.assertNoResult(dial)
        self.come_back()
        self.accept()
        self.successResultOf(dial)

    def test_dial_waits_beside_a_draining_route(self):
        """The dial does not move to a server that has also lost the agent, or is draining."""
        route = Route("edge-1")
        route.draining = True
        self.registry.add_remote(route)
        dial = self.dial_node()
        self.session.connection_lost()
        self.assertNoResult(dial)
        self.come_back()
        self.accept()
        self.assertEqual([], self.connected_agent.ends)
        self.assertNotEqual("by the sibling", self.successResultOf(dial))
        self.registry.remove_remote(route)

    def test_two_reports(self):
        """The ends of two connections may be reported in a row; a resumption ends both."""
        self.session.connection_lost()
        self.come_back()
        dial = self.dial_node()
        self.network.settle()
        self.clock.advance(RECONNECT_TIMEOUT + 1)
        self.accept()
        self.successResultOf(dial)

    def test_wait_timeout(self):
        """Waiting dials fail together if the agent is not back in time."""
        dials = [self.dial_node() for _ in range(3)]
        self.clock.advance(RECONNECT_TIMEOUT)
        for dial in dials:
            self.assert_failed(dial, 5)

    def test_dial_after_the_timeout(self):
        """Later ones fail at once, with how long the agent has been away."""
        self.clock.advance(12)
        self.assert_failed(self.dial_node(), 12)
        self.assertEqual(1, self.context.counters.dials[Code.SESSION_LOST])

    def test_return_after_the_timeout(self):
        """When the agent is back they are served again, also after another short loss."""
        self.clock.advance(12)
        self.come_back()
        for _ in range(2):
            dial = self.dial_node()
            self.network.settle()
            self.accept()
            self.successResultOf(dial)
            self.network.cut()
            self.come_back()

    def test_open_streams_wait(self):
        """Open streams are not affected."""
        self.come_back()
        user = self.stream(self.connected_agent)
        self.network.links[-1].lost = True
        while self.session.connected:
            self.clock.advance(0.25)
        self.network.cut()
        self.clock.advance(2 * RECONNECT_TIMEOUT)
        self.assert_failed(self.dial_node(), 10)
        self.come_back()
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual(b"goes on", bytes(self.connected_agent.far.received))

    def test_another_route(self):
        """New dials go at once through a sibling with the node, waiting ones after their time."""
        waits = self.dial_node()
        route = Route("edge-1")
        self.registry.add_remote(route)
        self.addCleanup(self.registry.remove_remote, route)
        self.assertIs(route, self.registry.find("edge-1"))
        self.clock.advance(RECONNECT_TIMEOUT)
        self.assertEqual("by the sibling", self.successResultOf(waits))

    def test_session_ends_first(self):
        """A waiting dial ends with the session, and the wait for the agent ends, too."""
        dial = self.dial_node()
        self.session.tunnel.close(Code.SESSION_LOST, "the agent has been restarted")
        self.assertIn("restarted", self.failureResultOf(dial, StreamFailed).value.text)

    def test_duration_of_the_wait(self):
        """The time is that of an agent's first four attempts, plus a moment for the last one."""
        attempts = sum(FIRST_DELAY * 2**number for number in range(4))
        self.assertEqual(4.5, attempts)
        self.assertLess(attempts, RECONNECT_TIMEOUT)


class SeveralServersTests(ListenerTests):
    """HELLOs have the sessions of agents with other servers, and the number of servers."""

    def holding(self, agent, *processes):
        """Set the processes in the agent's next HELLO with which it has sessions."""
        held = ",".join(process.hex() for process in processes)
        agent.hello = replace(agent.hello, properties={**agent.hello.properties, "held": held})

    def test_already_connected(self):
        """An agent that reaches a server by a second address is rejected, and keeps its session."""
        first = self.connected()
        user = self.stream(first)
        second = self.agent()
        self.holding(second, b"o" * 16, first.answer.process)
        lines = Logged(self)
        self.refused(second, Code.ALREADY_CONNECTED, "another of its addresses")
        self.assertEqual([], lines, "that an agent looks for other servers is no news")
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual((b"goes on", []), (bytes(first.far.received), first.ends))
        self.assertTrue(self.serving(first))

    def test_resumption_is_not_refused(self):
        """A session is resumed on a new connection whatever processes its agent lists."""
        agent = self.connected()
        user = self.stream(agent)
        self.holding(agent, agent.answer.process)
        agent.request_resumption()
        self.dial(agent)
        user.transport.write(b"goes on")
        self.network.settle()
        self.assertEqual((b"goes on", []), (bytes(agent.far.received), agent.ends))

    def test_other_servers(self):
        """Sessions with other servers do not cause a rejection."""
        agent = self.agent()
        self.holding(agent, b"o" * 16)
        self.dial(agent)
        self.assertTrue(self.serving(agent))

    def test_another_agent_of_the_node(self):
        """A second agent of a node replaces the first, whatever processes it lists."""
        first = self.connected()
        second = self.agent(process=b"b" * 16)
        self.holding(second, first.answer.process)
        self.dial(second)
        self.assertEqual([Code.REPLACED], [code for code, _ in first.ends])
        self.assertTrue(self.serving(second))

    def test_session_that_the_server_does_not_have(self):
        """An agent that mistakenly believes to be connected is accepted."""
        first = self.connected()
        process = first.answer.process
        self.listener.close_sessions(Code.INTERNAL, "")
        second = self.agent()
        self.holding(second, process)
        self.dial(second)
        self.assertTrue(self.serving(second))

    def test_draining_session(self):
        """A session that its agent is about to end does not prevent a new one."""
        first = self.connected()
        self.stream(first)
        first.session.drain("the agent is about to stop")
        self.network.settle()
        second = self.agent()
        self.holding(second, first.answer.process)
        self.dial(second)
        self.assertTrue(self.serving(second))

    def test_malformed_held(self):
        """A malformed list is a protocol violation."""
        agent = self.agent()
        self.holding(agent, b"short")
        self.refused(agent, Code.PROTOCOL, "held")

    def test_number_of_servers(self):
        """HELLO has the current number of servers, if it is known."""
        agent = self.connected()
        self.assertNotIn("servers", agent.answer.properties)
        self.replicas = 3
        agent.request_resumption()
        self.dial(agent)
        self.assertEqual("3", agent.answer.properties["servers"])
        self.replicas = 2
        self.assertEqual("2", self.connected("edge-2").answer.properties["servers"])
