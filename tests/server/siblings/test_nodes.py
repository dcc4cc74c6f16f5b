"""Nodes that are reached through a sibling, over TLS in memory."""

from __future__ import annotations

from dataclasses import replace

from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface.verify import verifyObject

from tests.fakes import FakeSession
from tests.server.siblings.world import NAMESPACE, OTHER_PROCESS, TwoServersTests
from yurttunnel.cluster.services import server_name
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.server.registry import INodeSession
from yurttunnel.server.siblings import feed
from yurttunnel.server.siblings import session as sibling_session
from yurttunnel.server.siblings.session import STALE_NODES_TTL
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.tunnel.shares import OTHER, Holder, Kind
from yurttunnel.wire.codes import Code


def fake_session(node):
    """Return a direct session whose dials the test completes."""
    return FakeSession(node, hosts=[node])


class NodeTests(TwoServersTests):
    """Nodes of a sibling."""

    def test_found(self):
        """A node is found where its agent is not connected, by all its identifiers, at once."""
        self.joined(identifiers="host=edge-1&host=camera&ipv4=192.0.2.7&cidr=10.1.0.0/16")
        for host in ("edge-1", "camera", "192.0.2.7", "10.1.2.3"):
            self.assertEqual("edge-1", self.first.registry.find_or_none(host).node)
            self.assertIs(
                self.first.registry.find_or_none("edge-1"), self.first.registry.find_or_none(host)
            )
        self.assertEqual(1, self.first.siblings.stats().remote_nodes)
        self.assertEqual(0, self.second.siblings.stats().remote_nodes)
        self.assertEqual([], self.first.listener.sessions())

    def test_there_before(self):
        """Nodes that were connected before the siblings are known, however many."""
        for number in range(300):
            self.second.registry.add(fake_session(f"node-{number}"))
        third = self.server(3)
        self.network.pass_time(1)
        self.assertTrue(third.serves(*[f"node-{number}" for number in range(300)]))
        self.assertTrue(self.first.serves("node-299"))

    def test_recreated(self):
        """A node that leaves the sibling is removed here; its last contact is stored."""
        agent = self.joined()
        agent.session.close(Code.GOING_AWAY, "stopped")
        self.network.pass_time(0.1)
        self.assertFalse(self.first.serves("edge-1"))

    def test_other_identifiers(self):
        """A node whose agent's identifiers change stays reachable throughout."""
        first = self.joined(identifiers="host=edge-1&ipv4=192.0.2.7")
        reached = []
        registry = self.first.registry
        registry.on_remote_removed.append(lambda node: reached.append(registry.is_reachable(node)))
        self.joined(identifiers="host=edge-1", process=first.hello.process)
        self.assertIsNone(self.first.registry.find_or_none("192.0.2.7"))
        self.assertEqual([True], reached)

    def test_node_that_leaves_while_a_session_ends(self):
        """Nodes of a sibling whose list has ended are forgotten soon."""
        stays = self.joined()
        goes = self.joined("edge-2")
        near, far = self.stream(self.first, stays, "edge-1", 80)
        self.unlist(self.second)
        self.network.pass_time(1)
        self.list(self.second)
        self.network.pass_time(3)
        goes.session.close(Code.GOING_AWAY, "stopped")
        self.network.pass_time(STALE_NODES_TTL, 1)
        self.assertFalse(self.first.serves("edge-2"))
        self.assertTrue(self.first.serves("edge-1"))
        near.transport.write(b"still there")
        self.network.settle()
        self.assertEqual(b"still there", far.received)

    def test_stream(self):
        """A stream through the sibling carries data both ways, and supports half-close."""
        agent = self.joined()
        near, far = self.stream(self.first, agent, "192.0.2.80", 8080)
        request = agent.acceptor.requests[-1]
        self.assertEqual(
            ("192.0.2.80", 8080, "request-1"), (request.host, request.port, request.request_id)
        )
        near.transport.write(b"question")
        near.transport.loseWriteConnection()
        self.network.settle()
        self.assertEqual((b"question", ["made", "read lost"]), (bytes(far.received), far.events))
        far.transport.write(b"answer")
        far.transport.loseConnection()
        self.network.settle()
        self.assertEqual(b"answer", bytes(near.received))
        self.assertEqual("lost", near.events[-1])
        self.assertEqual("lost", far.events[-1])
        self.assertIsNone(near.reasons[0].check(StreamFailed))
        self.assertIsNone(far.reasons[0].check(StreamFailed))

    def test_much(self):
        """Megabytes arrive intact both ways, and a reader that stops delays only its writer."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        data = bytes(range(256)) * 4096 * 4
        far.transport.pauseProducing()
        produced = _Producer(near.transport, data)
        near.transport.registerProducer(produced, True)
        produced.resumeProducing()
        self.network.pass_time(1)
        self.assertTrue(produced.paused)
        self.assertLess(produced.written, len(data))
        other_near, other_far = self.stream(self.first, agent)
        other_near.transport.write(b"quick")
        self.network.settle()
        self.assertEqual(b"quick", bytes(other_far.received))
        far.transport.resumeProducing()
        self.network.pass_time(1)
        self.assertEqual(data, bytes(far.received))
        for user in (near, other_near):
            user.transport.abortConnection()
        self.network.settle()

    def test_long_names(self):
        """A node with a name of 253 characters is reached, at a host of 240."""
        node = ".".join(["n" * 63] * 4)[:253]
        session = fake_session(node)
        self.second.registry.add(session)
        self.network.pass_time(0.1)
        host = ".".join(["h" * 60] * 4)[:240]
        opened = self.first.registry.find_or_none(node).open_stream(host, 80, 15.0, "r" * 255)
        self.network.settle()
        (dial,) = session.dials
        self.assertEqual((host, "r" * 255), (dial.host, dial.request_id))
        dial.fail(Code.REFUSED, "no")
        self.network.settle()
        self.failureResultOf(opened, StreamFailed)

    def test_charged_share(self):
        """The share of the first server's caller is charged, not that of the first server."""
        session = fake_session("edge-1")
        self.second.registry.add(session)
        self.network.pass_time(0.1)
        caller = Holder.of(Kind.FORWARD, "--forward a", "192.0.2.1")
        opened = self.first.registry.find_or_none("edge-1").open_stream(
            "192.0.2.80", 80, 15.0, "r", caller
        )
        self.network.settle()
        (dial,) = session.dials
        self.assertEqual(caller, dial.holder)
        dial.fail(Code.REFUSED, "no")
        self.network.settle()
        self.failureResultOf(opened, StreamFailed)

    def test_host_that_is_too_long(self):
        """A host that does not fit beside the node's number is a bad destination."""
        self.second.registry.add(fake_session("node-1"))
        self.network.pass_time(0.1)
        opened = self.first.registry.find_or_none("node-1").open_stream("h" * 255, 80, 15.0, "r")
        error = self.failureResultOf(opened, StreamFailed).value
        self.assertEqual(Code.BAD_DESTINATION, error.code)

    def test_failures(self):
        """Errors for an unreachable target have the agent's text and code."""
        agent = self.joined()
        for code in (Code.REFUSED, Code.DENIED, Code.NAME_NOT_RESOLVED, Code.OVERLOADED):
            opened = self.dial(self.first, agent)
            agent.acceptor.requests[-1].fail(code, f"edge-1: {code.name}")
            self.network.settle()
            error = self.failureResultOf(opened, StreamFailed).value
            self.assertEqual((code, f"edge-1: {code.name}"), (error.code, error.text))
        outgoing = self.first.siblings.stats().outgoing.dials
        incoming = self.second.siblings.stats().incoming.dials
        self.assertEqual((1, 1), (outgoing[Code.REFUSED], incoming[Code.REFUSED]))

    def test_timeout(self):
        """A dial to an unresponsive target times out."""
        agent = self.joined()
        opened = self.dial(self.first, agent, timeout=3.0)
        self.assertEqual(3.0, agent.acceptor.requests[-1].timeout)
        self.network.pass_time(3.6)
        self.assertEqual(Code.TIMEOUT, self.failureResultOf(opened, StreamFailed).value.code)

    def test_canceled_dial(self):
        """A dial that is canceled here is canceled at the agent."""
        agent = self.joined()
        opened = self.dial(self.first, agent)
        cancelled = []
        agent.acceptor.requests[-1].on_cancel(lambda: cancelled.append(True))
        opened.cancel()
        self.failureResultOf(opened, StreamFailed)
        self.network.settle()
        self.assertEqual([True], cancelled)

    def test_resets(self):
        """A stream that is reset at one end is reset at the other with the same reason."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        far.transport.abort(Code.CONNECTION_LOST, "the kubelet has died")
        self.network.settle()
        error = near.reasons[0].value
        self.assertEqual((Code.CONNECTION_LOST, "the kubelet has died"), (error.code, error.text))
        near, far = self.stream(self.first, agent)
        near.transport.abort(Code.CANCELLED, "kubectl has left")
        self.network.settle()
        error = far.reasons[0].value
        self.assertEqual((Code.CANCELLED, "kubectl has left"), (error.code, error.text))

    def test_direct_sessions_come_first(self):
        """A node with a direct session is not reached through a sibling, whichever came first."""
        self.joined()
        self.agent(self.first)
        self.assertIs(
            self.first.registry.direct("edge-1"), self.first.registry.find_or_none("edge-1")
        )
        self.joined("edge-1", process=OTHER_PROCESS)
        self.assertIs(
            self.first.registry.direct("edge-1"), self.first.registry.find_or_none("edge-1")
        )
        self.assertEqual(0, self.first.siblings.stats().remote_nodes)

    def test_direct_session_that_ends(self):
        """When the agent leaves this server, its node is reached through the sibling."""
        agent = self.joined()
        here = self.agent(self.first)
        here.session.close(Code.GOING_AWAY, "elsewhere")
        self.network.settle()
        near, far = self.stream(self.first, agent)
        near.transport.write(b"x")
        self.network.settle()
        self.assertEqual(b"x", bytes(far.received))
        near.transport.abortConnection()
        self.network.settle()

    def test_no_loops(self):
        """Nodes that a sibling reaches only through others are not reported."""
        third = self.server(3)
        self.network.pass_time(1)
        self.joined()
        self.assertTrue(self.first.serves("edge-1") and third.serves("edge-1"))
        claims = [session for session in third.registry._remote if session.node == "edge-1"]
        self.assertEqual(1, len(claims))

    def test_agent_that_drains(self):
        """A node whose agent is draining is chosen last, and its idle connections are closed."""
        drained = []
        self.first.listener.on_sessions_draining.append(drained.extend)
        agent = self.joined()
        agent.acceptor.answer = None
        near, _ = self.stream(self.first, agent)
        route = self.first.registry.find_or_none("edge-1")
        self.assertFalse(route.draining)
        agent.session.drain("the agent is about to stop")
        self.network.pass_time(0.1)
        self.assertTrue(route.draining)
        self.assertEqual([route], drained)
        near.transport.abortConnection()
        self.network.pass_time(0.5)

    def test_node_that_leaves_during_the_dial(self):
        """A dial for a node that leaves its sibling meanwhile fails with that reason."""
        agent = self.joined()
        route = self.first.registry.find_or_none("edge-1")
        opened = self.dial(self.first, agent)
        agent.session.close(Code.SESSION_LOST, "gone")
        self.network.settle()
        self.assertEqual(Code.SESSION_LOST, self.failureResultOf(opened, StreamFailed).value.code)
        again = route.open_stream("192.0.2.80", 80, 15.0, "r")
        self.network.settle()
        self.assertEqual(Code.SESSION_LOST, self.failureResultOf(again, StreamFailed).value.code)

    def test_another_route(self):
        """A dial that is lost on the way to its node takes the route through another sibling."""
        agent, doomed = self.two_siblings_with_a_node()
        opened = self.dial(self.first, doomed)
        self.assertEqual(1, len(doomed.acceptor.requests))
        doomed.session.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.settle()
        self.opens(opened, agent)

    def both(self):
        """Connect agents of a node to both replicas; return them, the first one's first."""
        near = self.agent(self.first)
        far = self.joined("edge-1", process=OTHER_PROCESS)
        return near, far

    def test_direct_session_without_a_connection(self):
        """A node whose agent is temporarily away is reached through the sibling that has it."""
        near, far = self.both()
        near.link.cut()
        used, _ = self.stream(self.first, far)
        used.transport.abortConnection()
        self.network.settle()

    def test_pending_dial_moves(self):
        """A pending dial is moved to the sibling at once when the agent's connection is lost."""
        near, far = self.both()
        opened = self.dial(self.first, near)
        near.link.cut()
        self.network.settle()
        self.opens(opened, far)

    def test_dial_without_another_route(self):
        """A dial without another route waits until the agent is back."""
        agent = self.agent(self.first)
        opened = self.dial(self.first, agent)
        agent.link.cut()
        self.network.settle()
        self.assertNoResult(opened)
        opened.cancel()
        self.assertEqual(Code.CANCELLED, self.failureResultOf(opened, StreamFailed).value.code)

    def test_agent_that_reconnects_to_a_sibling_only(self):
        """Dials go there at once, also those that waited for it here; streams here wait for the
        resume window, as it is unknown whether its process is a new one.
        """
        window = 30.0
        listener = self.first.listener
        listener.settings = replace(listener.settings, return_grace=window)
        killed = self.agent(self.first)
        near, _ = self.stream(self.first, killed)
        killed.link.cut()
        waiting = self.dial(self.first, killed)
        self.network.pass_time(1)
        self.assertNoResult(waiting)
        back = self.agent(self.second, process=OTHER_PROCESS)
        self.network.pass_time(0.1)
        back.acceptor.requests[-1].accept()
        self.network.settle()
        self.successResultOf(waiting).abortConnection()
        used, _ = self.stream(self.first, back)
        used.transport.abortConnection()
        self.network.pass_time(window - 2, step=1)
        self.assertEqual(["made"], near.events)
        self.network.pass_time(2, step=1)
        self.assertEqual(["made", "lost"], near.events)
        self.assertEqual(Code.SESSION_LOST, near.reasons[0].value.code)

    def test_dial_while_the_sibling_waits_too(self):
        """A waiting dial moves to a sibling that had lost the agent, once that is back there."""
        near, far = self.both()
        for agent in (far, near):
            agent.link.cut()
        self.network.pass_time(0.1)
        waiting = self.dial(self.first, near)
        self.network.settle()
        self.assertNoResult(waiting)
        back = self.agent(self.second, process=b"c" * 16)
        self.network.pass_time(0.1)
        self.opens(waiting, back)

    def test_dial_while_the_connection_to_the_sibling_is_lost(self):
        """A waiting dial moves to a sibling that has the agent, once the sibling is back."""
        listener = self.first.listener
        listener.settings = replace(listener.settings, return_grace=30.0)
        _, far = self.both()
        for link in self.network.open_links:
            if link is not far.link:
                link.cut()
        self.assertFalse(self.first.serves("edge-1"))
        opened = self.first.registry.find("edge-1").open_stream("192.0.2.80", 80, 15.0, "waits")
        self.network.pass_time(1)
        self.assertEqual((1, 1), self.first.stats)
        self.assertEqual("waits", far.acceptor.requests[-1].request_id)
        self.opens(opened, far)

    def test_direct_session_that_is_lost(self):
        """A dial that is lost in a session with the agent takes the route through a sibling."""
        near, far = self.both()
        opened = self.dial(self.first, near)
        self.assertEqual([], far.acceptor.requests)
        near.session.close(Code.SESSION_LOST, "the agent has been restarted")
        self.network.pass_time(0.5)
        self.assertLess(far.acceptor.requests[-1].timeout, 15.0)
        self.opens(opened, far)

    def test_answer_of_the_agent(self):
        """A dial with a result from the agent is not repeated."""
        near, far = self.both()
        opened = self.dial(self.first, near)
        near.acceptor.requests[-1].fail(Code.REFUSED, "refused")
        self.network.pass_time(0.5)
        self.assertEqual(Code.REFUSED, self.failureResultOf(opened, StreamFailed).value.code)
        self.assertEqual([], far.acceptor.requests)

    def test_lost_in_both(self):
        """A dial that is lost in a sibling's session with the agent does not return through us."""
        near, far = self.both()
        route = self.first.registry.find_another(self.first.registry.find_or_none("edge-1"))
        opened = route.open_without_fallback("192.0.2.80", 80, 15.0, "r")
        self.network.settle()
        far.session.close(Code.SESSION_LOST, "the agent has been restarted")
        self.network.pass_time(0.5)
        self.assertEqual(Code.SESSION_LOST, self.failureResultOf(opened, StreamFailed).value.code)
        self.assertEqual([], near.acceptor.requests)

    def test_disconnected_agent(self):
        """A node whose agent is disconnected from a sibling is first tried through another."""
        third = self.server(3)
        self.network.pass_time(1)
        away = self.agent(third)
        back = self.joined("edge-1", process=OTHER_PROCESS)
        for agent in (away, back):
            server = third if agent is away else self.second
            agent.link.cut()
            self.network.pass_time(0.1)
            other = back if agent is away else away
            used, _ = self.stream(self.first, other)
            used.transport.abortConnection()
            agent.request_resumption()
            creator = ClientContexts(agent.credentials).creator(server_name(NAMESPACE))
            factory = TLSMemoryBIOFactory(creator, True, agent, self.network)
            agent.link = self.network.link(factory.buildProtocol(None), server.host)
            self.network.pass_time(0.1)

    def test_malformed_list(self):
        """A sibling with a malformed list is disconnected, and retried with a backoff."""
        self.patch(feed, "encode_entry", lambda entry: b"nonsense\n")
        attempts = len(self.network.attempts)
        self.joined()
        problems = set()
        for _ in range(30):
            self.network.pass_time(1)
            problems.add(self.first.siblings.problem())
        self.assertIn("a line is not JSON", " ".join(filter(None, problems)))
        self.assertFalse(self.first.serves("edge-1"))
        ends = self.first.siblings.stats().outgoing.session_ends
        self.assertGreater(ends[Code.PROTOCOL], 3)
        self.assertLess(len(self.network.attempts) - attempts, 60)

    def test_too_many_nodes(self):
        """A sibling with too many nodes is disconnected, too."""
        self.patch(sibling_session, "MAX_NODES", 1)
        self.joined()
        self.assertTrue(self.first.serves("edge-1"))
        self.second.registry.add(fake_session("edge-2"))
        self.network.pass_time(0.1)
        ends = self.first.siblings.stats().outgoing.session_ends
        # It may be back, and disconnected again, at once.
        self.assertGreaterEqual(ends[Code.PROTOCOL], 1)

    def test_unknown_targets(self):
        """A sibling uses the numbers that were reported to it; others are rejected with a code."""
        self.joined()
        self.network.pass_time(0.1)
        (tunnel,) = self.first.siblings._outgoing()
        for host, code in (
            (f"2/{OTHER}/192.0.2.80", Code.SESSION_LOST),
            (f"0/{OTHER}/192.0.2.80", Code.BAD_DESTINATION),
            (f"edge-1/{OTHER}/192.0.2.80", Code.BAD_DESTINATION),
            ("1/192.0.2.80", Code.BAD_DESTINATION),
            ("1/____________/192.0.2.80", Code.BAD_DESTINATION),
            (f"1/{OTHER}=/192.0.2.80", Code.BAD_DESTINATION),
            (f"1/{OTHER}/", Code.BAD_DESTINATION),
            ("192.0.2.80", Code.BAD_DESTINATION),
            ("1/", Code.BAD_DESTINATION),
            ("nodes", Code.DENIED),
        ):
            opened = tunnel.open_stream(host, 80, 15.0, "r")
            self.network.settle()
            self.assertEqual(code, self.failureResultOf(opened, StreamFailed).value.code, host)

    def test_siblings_open_no_streams(self):
        """The dialed side cannot open streams in the same session."""
        (tunnel,) = self.second.siblings._acceptor.sessions()
        opened = tunnel.open_stream("1/192.0.2.80", 80, 15.0, "r")
        self.network.settle()
        self.assertEqual(Code.PROTOCOL, self.failureResultOf(opened, StreamFailed).value.code)

    def test_snapshot(self):
        """The snapshot of a route has the node's name and the sibling's session."""
        self.joined()
        route = self.first.registry.find_or_none("edge-1")
        verifyObject(INodeSession, route)
        snapshot = route.snapshot()
        self.assertEqual(("edge-1", True), (snapshot.node, snapshot.connected))


class _Producer:
    """Writes pieces of data while it is not paused."""

    def __init__(self, consumer, data):
        self.consumer = consumer
        self.data = data
        self.written = 0
        self.paused = False

    def pauseProducing(self):
        """Wait."""
        self.paused = True

    def resumeProducing(self):
        """Write."""
        self.paused = False
        while not self.paused and self.written < len(self.data):
            piece = self.data[self.written : self.written + 16384]
            self.written += len(piece)
            self.consumer.write(piece)

    def stopProducing(self):
        """Stop writing."""
        self.paused = True
