"""The agents' listener: successive agents of a node."""

from __future__ import annotations

from dataclasses import replace

from tests.server.agents import WINDOW, ListenerTests
from yurttunnel.server.agents import (
    MAX_SESSIONS_OF_NODE,
)
from yurttunnel.server.node_session import RECONNECT_GRACE, RECONNECT_TIMEOUT
from yurttunnel.wire.codes import Code


class ReplacementTests(ListenerTests):
    """Two sessions of one node."""

    def test_same_process(self):
        """A process that starts a new session finishes the streams of its old one beside it.

        Its GOAWAY for the old one, on another connection, may arrive after the new HELLO.
        """
        idle = []
        self.listener.on_sessions_draining.append(idle.extend)
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
        self.assertTrue(first.session.draining)
        user.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([Code.GOING_AWAY], [code for code, _ in first.ends])
        self.assertEqual(1, len(self.listener.sessions()))
        self.assertTrue(self.serving(second))

    def test_same_process_without_connection(self):
        """An old session without a connection waits for its agent, if that still lists it.

        The agent's GOAWAY may have been lost with the connection.
        """
        first = self.connected()
        users = [self.stream(first)]
        self.network.links[-1].cut()
        second = self.agent()
        second.list_kept(first)
        self.dial(second)
        self.assertTrue(self.serving(second))
        self.assertEqual(2, len(self.listener.sessions()))
        first.request_resumption()
        self.dial(first)
        self.assertTrue(self.serving(second))
        users[0].transport.write(b"still here")
        self.network.settle()
        self.assertEqual((b"still here", []), (bytes(first.far.received), first.ends))

    def test_aborted(self):
        """An old session that the agent has given up, because it reached another server, ends."""
        user = self.stream(self.connected())
        self.network.links[-1].cut()
        second = self.connected()
        self.assertEqual(Code.REPLACED, user.reasons[0].value.code)
        self.assertEqual(1, len(self.listener.sessions()))
        self.assertTrue(self.serving(second))

    def test_malformed_kept(self):
        """A malformed list is rejected, and replaces nothing."""
        first = self.connected()
        second = self.agent()
        second.hello = replace(second.hello, properties={"kept": "none"})
        self.refused(second, Code.PROTOCOL, "a property kept that is not a list of sessions")
        self.assertEqual([], first.ends)
        self.assertEqual(1, len(self.listener.sessions()))

    def test_second_agent(self):
        """A second agent of a node replaces the first, which gets the reason, and waits."""
        reported = []
        self.listener.on_interrupted.append(lambda node, reason: reported.append((node, reason)))
        first = self.connected()
        second = self.connected(process=b"b" * 16)
        self.assertEqual([Code.REPLACED], [code for code, _ in first.ends])
        self.assertTrue(self.serving(second))
        text = "another agent has connected as this node; is it running twice?"
        self.assertEqual([("edge-1", text)], reported)

    def test_restarted_agent(self):
        """A restarted agent ends its predecessor's streams with SESSION_LOST."""
        first = self.connected()
        user = self.stream(first)
        self.network.cut()
        second = self.connected(process=b"b" * 16)
        self.assertEqual(Code.SESSION_LOST, user.reasons[0].value.code)
        self.assertTrue(self.serving(second))

    def test_end_of_the_replaced(self):
        """Later events of a replaced session do not affect the registry."""
        self.connected()
        old = self.network.links[-1]
        second = self.connected()
        old.cut()
        self.network.pass_time(2)
        self.assertTrue(self.serving(second))
        self.assertEqual(1, len(self.listener.sessions()))

    def test_draining_predecessor(self):
        """A draining agent finishes its streams beside its successor."""
        first = self.connected()
        user = self.stream(first)
        first.session.drain("the agent is about to stop")
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

    def test_predecessor_serves_until_its_successor_connects(self):
        """New streams go to a draining agent until its successor has connected."""
        first = self.connected()
        user = self.stream(first)
        first.session.drain("the agent is about to stop")
        self.network.pass_time(10)
        self.stream(first).transport.abortConnection()
        self.network.pass_time(1)
        second = self.connected(process=b"b" * 16)
        self.stream(second)
        self.assertEqual(1, len(second.acceptor.requests))
        self.assertEqual(["made"], user.events)

    def test_connection_lost_while_draining(self):
        """A draining session that loses its connection waits for its agent only if it has streams.

        A session with a stream waits, and is resumed.
        """
        for streams in (0, 1):
            agent = self.connected(process=bytes([streams]) * 16)
            users = [self.stream(agent) for _ in range(streams)]
            # Everything of the last stream has arrived before.
            self.network.pass_time(1)
            agent.session.drain("the agent is about to stop")
            self.network.settle()
            self.network.cut()
            self.assertEqual(streams, len(self.listener.sessions()))
        agent.request_resumption()
        self.dial(agent)
        self.assertEqual([["made"]], [user.events for user in users])

    def test_unreceived_data_of_a_draining_session(self):
        """A session also waits if data of its last stream may not have arrived."""
        agent = self.connected()
        user = self.stream(agent)
        agent.session.drain("the agent is about to stop")
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
        agent.request_resumption()
        self.dial(agent)
        self.assertEqual(b"last words", bytes(agent.far.received))
        self.network.pass_time(1)

    def test_sessions_of_one_node_are_limited(self):
        """An agent that keeps returning as another process replaces the oldest session."""
        agents = []
        for number in range(MAX_SESSIONS_OF_NODE + 3):
            agents.append(self.connected(process=bytes([number]) * 16))
            agents[-1].user = self.stream(agents[-1])
            agents[-1].session.drain("the agent is about to stop")
            self.network.settle()
        self.assertEqual(MAX_SESSIONS_OF_NODE, len(self.listener.sessions()))
        reasons = [[reason.value.code for reason in agent.user.reasons] for agent in agents]
        self.assertEqual([[Code.REPLACED]] * 3 + [[]] * MAX_SESSIONS_OF_NODE, reasons)
        self.assertTrue(self.serving(agents[-1]))
        self.connected("edge-2")
        self.assertEqual(MAX_SESSIONS_OF_NODE + 1, len(self.listener.sessions()))

    def test_waiting_sessions_are_replaced(self):
        """A node that connects with a new session each time has only one."""
        for number in range(20):
            self.connected(process=bytes([number]) * 16)
            self.network.cut()
            self.assertEqual(1, len(self.listener.sessions()))

    def test_draining_is_reported(self):
        """Subscribers are notified of a session that its agent is about to end."""
        drained = []
        self.listener.on_sessions_draining.append(drained.extend)
        agent = self.connected()
        self.assertEqual([], drained)
        agent.session.drain("the agent is about to stop")
        self.network.settle()
        (session,) = drained
        self.assertEqual("edge-1", session.node)
        self.assertTrue(session.draining)

    def test_other_nodes(self):
        """The sessions of other nodes are not affected."""
        other = self.connected("edge-2")
        self.connected()
        self.connected()
        self.network.pass_time(1)
        self.assertEqual([], other.ends)
        self.assertEqual(2, len(self.listener.sessions()))


class SuccessionTests(ListenerTests):
    """A draining agent, its successor, and events of either."""

    grace = WINDOW

    def setUp(self):
        """Let an agent drain with a stream."""
        super().setUp()
        self.first = self.connected()
        self.link = self.network.links[-1]
        self.user = self.stream(self.first)
        self.first.session.drain("the agent is about to stop")
        self.network.settle()

    def test_predecessor_serves_when_its_successor_has_ended(self):
        """A draining agent is used again when its successor ends first."""
        second = self.connected(process=b"b" * 16)
        second.session.drain("this agent is about to stop, too")
        self.network.pass_time(1)
        self.assertEqual([Code.GOING_AWAY], [code for code, _ in second.ends])
        self.stream(self.first).transport.abortConnection()
        self.assertEqual((["made"], []), (self.user.events, self.first.ends))

    def test_predecessor_serves_when_its_successor_is_lost(self):
        """Dials wait briefly for the successor, and then use the draining session."""
        second = self.connected(process=b"b" * 16)
        self.network.links[-1].cut()
        self.network.settle()
        found = self.registry.find("edge-1")
        waits = found.open_stream("192.0.2.80", 80, 15.0, "r")
        self.assertTrue(self.serving(second))
        changed = []
        self.registry.on_direct_changed.append(changed.append)
        self.clock.advance(RECONNECT_GRACE - 0.1)
        self.assertTrue(self.serving(second))
        self.clock.advance(0.2)
        self.assertEqual(["edge-1"], changed, "siblings are notified")
        self.assertTrue(self.serving(self.first))
        self.network.settle()
        self.first.acceptor.requests[-1].accept()
        self.network.settle()
        self.successResultOf(waits).abort(Code.CANCELLED, "")
        self.stream(self.first).transport.abortConnection()
        second.request_resumption()
        self.dial(second)
        self.assertTrue(self.serving(second))
        self.assertEqual(["made"], self.user.events)

    def test_draining_predecessor_is_killed_first(self):
        """The predecessor's streams end when its agent is overdue and the successor connected."""
        self.network.cut()
        self.clock.advance(1)
        self.connected(process=b"b" * 16)
        self.clock.advance(RECONNECT_TIMEOUT - 1.1)
        self.assertEqual([], self.user.reasons)
        self.clock.advance(0.2)
        self.assert_restarted()

    def test_draining_predecessor_is_lost_for_long(self):
        """The streams of a predecessor that is lost for long end when its successor connects."""
        self.network.cut()
        self.clock.advance(RECONNECT_TIMEOUT + 1)
        self.assertEqual([], self.user.reasons)
        self.connected(process=b"b" * 16)
        self.assert_restarted()

    def test_draining_predecessor_is_killed_later(self):
        """The same time applies to a predecessor that is killed after its successor connected."""
        self.connected(process=b"b" * 16)
        self.network.pass_time(3)
        self.link.cut()
        self.network.settle()
        self.clock.advance(RECONNECT_TIMEOUT - 0.1)
        self.assertEqual([], self.user.reasons)
        self.clock.advance(0.2)
        self.assert_restarted()

    def test_draining_predecessor_reconnects(self):
        """A live agent keeps its streams, whoever has connected meanwhile."""
        self.connected(process=b"b" * 16)
        self.link.cut()
        self.network.settle()
        self.clock.advance(RECONNECT_TIMEOUT - 0.1)
        self.first.request_resumption()
        self.dial(self.first)
        self.network.pass_time(RECONNECT_TIMEOUT)
        self.assertEqual([], self.user.reasons)

    def test_second_session_of_a_process(self):
        """A draining session waits for its agent beside another session of the same process."""
        self.connected()
        self.link.cut()
        self.network.settle()
        self.clock.advance(RECONNECT_TIMEOUT + 1)
        self.assertEqual([], self.user.reasons)

    def test_second_address_while_the_predecessor_serves(self):
        """The successor's agent is rejected at a second address of the server."""
        second = self.connected(process=b"b" * 16)
        self.network.links[-1].cut()
        self.network.settle()
        self.clock.advance(RECONNECT_GRACE)
        self.assertTrue(self.serving(self.first))
        again = self.agent(process=b"b" * 16)
        held = {"held": second.answer.process.hex()}
        again.hello = replace(again.hello, properties={**again.hello.properties, **held})
        self.refused(again, Code.ALREADY_CONNECTED, "another of its addresses")

    def assert_restarted(self):
        """Check that the stream has ended because its agent was restarted."""
        (reason,) = self.user.reasons
        self.assertEqual(Code.SESSION_LOST, reason.value.code)
        self.assertIn("has been restarted", reason.value.text)
