"""The agent's side of its sessions, against the real listener over TLS in memory."""

from __future__ import annotations

import random

from twisted.internet.error import TimeoutError
from twisted.logger import formatEvent, globalLogPublisher
from twisted.test.iosim import FakeTransport
from twisted.trial.unittest import TestCase

from tests.network import MemoryNetwork, context_with
from tests.pki.support import Issuer, clock_now
from tests.tunnel.memory import Acceptor, HalfCloseUser
from yurttunnel.agent.client import REPLACED_WARNINGS, ServerClient
from yurttunnel.agent.connection_group import (
    FIRST_DELAY,
    FIRST_LOOKS,
    LONGEST_DELAY,
    LONGEST_LOOK,
    LONGEST_REPLACED_DELAY,
    MOST_SERVERS,
    REPLACED_DELAY,
    URGENT_ATTEMPTS,
    URGENT_DELAY,
    URGENT_LOOKS,
    ClientSettings,
    ConnectionGroup,
    advertised_servers,
)
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT, HELLO_TIMEOUT
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Hello, Limits


class ClientTests(TestCase):
    """What the tests share."""

    def setUp(self):
        """Make a server and a client that has not begun."""
        random.seed(2)
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.network = MemoryNetwork(self.clock, None)
        self.revoked = False
        self.start_server()
        self.acceptor = Acceptor()
        self.group = ConnectionGroup()
        self.clients = self.group.clients
        self.settings = ClientSettings("edge-1", lambda: "host=edge-1", Limits(), "test 1")
        self.client = self.make_client(self.issuer.node())
        self.events = []
        globalLogPublisher.addObserver(self.events.append)
        self.addCleanup(globalLogPublisher.removeObserver, self.events.append)
        self.addCleanup(self.check_nothing_is_left)

    def check_nothing_is_left(self):
        """Stop the clients; no session, connection or timer may remain."""
        for client in self.clients:
            client.close(Code.GOING_AWAY, "the test is over")
            self.assertEqual([], client.sessions())
        self.listener.close_sessions(Code.GOING_AWAY, "the test is over")
        self.network.settle()
        self.clock.advance(CLOSE_TIMEOUT)
        self.network.settle()
        self.assertEqual([], self.network.open_links)
        self.assertEqual([], self.clock.getDelayedCalls())

    def start_server(self):
        """Start a server, in the place of the one before."""
        self.server = context_with(self.clock, RefuseStreams())
        self.registry = SessionRegistry(self.clock)
        self.listener = AgentListener(
            self.server,
            self.registry,
            lambda identity: self.revoked,
            AgentListenerSettings(Limits(), 0.8, "server", "test 2"),
            {},
        )
        contexts = ServerContexts(self.issuer.server())
        self.network.factory = tls.server_side(self.clock, contexts, self.listener)

    def make_client(self, credentials):
        """Make a client."""
        self.context = context_with(self.clock, self.acceptor)
        creator = ClientContexts(credentials).creator("server.test")
        endpoint = tls.SessionEndpoint(self.clock, creator, self.network)
        server = "server.test:10262"
        client = ServerClient(self.context, server, endpoint, self.settings, self.group)
        self.clients.append(client)
        return client

    def connect(self):
        """Start the client, and let it connect."""
        self.client.start()
        self.network.settle()
        self.assertTrue(self.client.connected, self.client.last_error)

    def stream(self):
        """Open a stream from the server; give the users of its near and far end."""
        opened, near, far = [], HalfCloseUser(), HalfCloseUser()
        session = self.registry.find("edge-1")
        session.open_stream("192.0.2.80", 80, 15.0, "r").addCallback(opened.append)
        self.network.settle()
        self.acceptor.requests[-1].accept().attach(far)
        self.network.settle()
        opened[0].attach(near)
        return near, far

    def delay(self):
        """Return the seconds until the next attempt, for which the client waits."""
        call = self.client._callID
        self.assertIsNotNone(call, "no attempt is to come")
        return call.getTime() - self.clock.seconds()

    def attempt(self):
        """Let the client's next attempt take place."""
        self.clock.advance(self.delay() + 1e-6)
        self.network.settle()

    def warnings(self):
        """Return the warnings that the client has logged."""
        return self.logged("warn")

    def logged(self, level):
        """Return what the client has logged with a level."""
        return [
            formatEvent(event)
            for event in self.events
            if event["log_namespace"].endswith("ServerClient") and event["log_level"].name == level
        ]

    def closed_with(self, counters):
        """Return how sessions have ended."""
        return dict(counters.session_ends)


class DelayTests(ClientTests):
    """When the client tries again."""

    def test_bounds(self):
        """Each delay lies between nothing and a bound that doubles up to LONGEST_DELAY."""
        self.network.refuse()
        self.client.start()
        bound = FIRST_DELAY
        for _ in range(14):
            self.assertLessEqual(0, self.delay())
            self.assertLessEqual(self.delay(), bound + 1e-3)
            bound = min(2 * bound, LONGEST_DELAY)
            self.attempt()

    def test_full_jitter(self):
        """The delays of many clients fill the whole range evenly."""
        self.network.refuse()
        self.client.start()
        delays = []
        for _ in range(400):
            self.client.retries = 30
            self.attempt()
            delays.append(self.delay())
        quarters = [sum(15 * n <= d < 15 * (n + 1) for d in delays) for n in range(4)]
        for quarter in quarters:
            self.assertTrue(60 < quarter < 140, quarters)
        self.assertLessEqual(max(delays), LONGEST_DELAY + 1e-3)

    def test_many_failures(self):
        """However often it has failed, the client computes a delay."""
        self.network.refuse()
        self.client.start()
        self.client.retries = 1_000_000
        self.attempt()
        self.assertLessEqual(self.delay(), LONGEST_DELAY + 1e-3)

    def test_reset_by_hello(self):
        """The server's HELLO begins the delays anew."""
        self.network.refuse()
        self.client.start()
        for _ in range(6):
            self.attempt()
        self.network.problem = None
        self.attempt()
        self.assertTrue(self.client.connected)
        self.network.cut()
        self.assertLessEqual(self.delay(), FIRST_DELAY + 1e-3)

    def test_not_reset_by_connection(self):
        """A connection over which no HELLO comes is a failed attempt like any other."""
        self.client.start()
        for number in range(1, 6):
            self.network.links[-1].lost = True
            self.clock.advance(HELLO_TIMEOUT)
            self.network.links[-1].cut()
            self.assertEqual(number, self.client.failed_attempts)
            self.assertEqual(number, self.client.retries)
            self.clock.advance(self.delay() + 1e-6)

    def test_refused_by_tls(self):
        """So is one whose certificate the server refuses, which TLS 1.3 first lets through."""
        self.client = self.make_client(self.issuer.expired_node())
        self.client.start()
        self.network.settle()
        for number in range(1, 6):
            self.assertEqual((number, number), (self.client.failed_attempts, self.client.retries))
            self.attempt()
        self.assertIn("certificate has expired", self.client.last_error)

    def test_refused_by_the_server(self):
        """So is one that the server answers with CLOSE; the reason is told."""
        self.revoked = True
        self.client.start()
        self.network.settle()
        for number in range(1, 6):
            self.assertEqual((number, number), (self.client.failed_attempts, self.client.retries))
            self.attempt()
        self.assertIn("node edge-1 has been revoked", self.client.last_error)

    def test_while_wanting(self):
        """While a server is missing the bound stays at URGENT_DELAY, until it is gone for good."""
        self.group.wanting = True
        self.network.refuse()
        self.patch(random, "uniform", lambda low, high: high)
        self.client.start()
        for number in range(URGENT_ATTEMPTS + 3):
            longest = URGENT_DELAY if number < URGENT_ATTEMPTS else LONGEST_DELAY
            self.assertAlmostEqual(min(FIRST_DELAY * 2**number, longest), self.delay(), places=3)
            self.attempt()

    def test_to_resume(self):
        """So it does while a session waits to be resumed, whose window would be over."""
        self.connect()
        self.stream()
        self.network.cut()
        self.network.refuse()
        self.patch(random, "uniform", lambda low, high: high)
        for _ in range(8):
            self.attempt()
        self.assertLessEqual(self.delay(), URGENT_DELAY + 1e-3)
        self.assertEqual(1, len(self.client.sessions()))

    def test_herd(self):
        """Agents that wait for one server come back evenly spread over URGENT_DELAY."""
        group = ConnectionGroup(wanting=True)
        delays = [group.next_delay(20) for _ in range(2000)]
        for second in range(5):
            number = sum(second <= delay < second + 1 for delay in delays)
            self.assertTrue(340 < number < 460, number)
        self.assertLessEqual(max(delays), URGENT_DELAY)


class SessionTests(ClientTests):
    """Which session a connection carries."""

    def test_hello(self):
        """The client tells its identifiers and version, and the server's is told of it."""
        self.connect()
        hello = self.listener.sessions()[0].wire.peer
        self.assertEqual(
            {"software": "test 1", "identifiers": "host=edge-1"}, dict(hello.properties)
        )
        snapshot = self.client.sessions()[0].snapshot()
        self.assertEqual(("server.test:10262", "test 2"), (snapshot.node, snapshot.version))
        self.assertIsNone(self.client.last_error)

    def test_other_limits(self):
        """They count for sessions that begin then."""
        self.settings.limits = Limits(resume_window=1_000)
        self.connect()
        self.assertEqual(1_000, self.listener.sessions()[0].wire.peer.limits.resume_window)

    def test_resume(self):
        """After a loss the session goes on where it was, in both directions."""
        self.connect()
        near, far = self.stream()
        session = self.client.sessions()[0]
        near.transport.write(b"one ")
        far.transport.write(b"eins ")
        self.network.settle()
        near.transport.write(b"two")
        far.transport.write(b"zwei")
        self.network.cut()
        self.assertFalse(self.client.connected)
        self.attempt()
        self.assertEqual([session], self.client.sessions())
        self.assertTrue(self.client.connected)
        self.assertEqual((b"eins zwei", b"one two"), (bytes(near.received), bytes(far.received)))
        self.assertEqual((1, 1), (self.server.counters.resumptions, session.resumptions))

    def test_silent(self):
        """A connection on which nothing comes any more is given up, and the session goes on."""
        self.connect()
        near, _ = self.stream()
        old = self.network.links[-1]
        old.lost = True
        self.clock.advance(0)
        session = self.client.sessions()[0]
        while session.connected:
            self.clock.advance(0.25)
        old.cut()
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(["made"], near.told)

    def test_unknown_session(self):
        """A restarted server's new session takes the old one's place on the same connection."""
        self.connect()
        _, far = self.stream()
        old = self.client.sessions()[0]
        self.network.cut()
        self.start_server()
        self.attempt()
        self.assertTrue(old.closed)
        self.assertEqual(Code.SESSION_LOST, far.reasons[0].value.code)
        self.assertTrue(self.client.connected)
        self.assertEqual(2, self.network.attempts)
        self.assertEqual(1, len(self.listener.sessions()))
        self.assertEqual({Code.SESSION_LOST: 1}, self.closed_with(self.context.counters))

    def test_window_over(self):
        """When the resume window is over the session ends, and a new one begins when it can."""
        self.connect()
        _, far = self.stream()
        self.network.cut()
        self.network.refuse()
        self.network.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, far.reasons[0].value.code)
        self.assertEqual([], self.client.sessions())
        self.network.problem = None
        self.attempt()
        self.assertTrue(self.client.connected)

    def test_revoked(self):
        """A session that the server ends is over; the client tries to begin another."""
        self.connect()
        self.revoked = True
        self.listener.revoke("edge-1")
        self.network.settle()
        self.assertEqual([], self.client.sessions())
        self.attempt()
        self.assertIn("revoked", self.client.last_error)
        self.assertEqual({Code.REVOKED: 1}, self.closed_with(self.context.counters))


class GoingAwayTests(ClientTests):
    """A server that goes away."""

    def setUp(self):
        """Have a stream through a server that goes away, and another server to go to."""
        super().setUp()
        self.connect()
        self.near, self.far = self.stream()
        self.old = self.client.sessions()[0]
        self.leaving, before = self.listener, self.listener
        self.start_server()
        before.drain("the server is about to stop")
        self.network.settle()
        self.attempt()

    def test_new_session(self):
        """A new session begins on a new connection while the old one's streams go on."""
        new, old = self.client.sessions()
        self.assertIs(self.old, old)
        self.assertTrue(new.connected and old.connected and self.client.connected)
        self.assertEqual(1, len(self.listener.sessions()))
        self.near.transport.write(b"still here")
        self.network.pass_time(5)
        self.assertEqual(b"still here", bytes(self.far.received))

    def test_end_of_the_old(self):
        """The end of the old session, and of its connection, does not concern the new one."""
        new = self.client.sessions()[0]
        self.near.transport.abortConnection()
        self.network.pass_time(2)
        self.assertTrue(self.old.closed)
        self.assertEqual([new], self.client.sessions())
        self.assertTrue(new.connected)
        self.assertEqual(2, self.network.attempts)
        self.assertIsNone(self.client.last_error)

    def test_loss_of_the_old(self):
        """When the old session's connection breaks nobody brings it back: its streams end."""
        new = self.client.sessions()[0]
        self.network.links[0].cut()
        self.network.settle()
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assertEqual([new], self.client.sessions())
        self.assertEqual(2, self.network.attempts)

    def test_loss_of_the_new(self):
        """The new session is resumed like any other while the old one is still there."""
        new = self.client.sessions()[0]
        self.network.links[-1].cut()
        self.attempt()
        self.assertEqual([new, self.old], self.client.sessions())
        self.assertTrue(new.connected and self.old.connected)

    def test_stop(self):
        """Both end when the agent stops."""
        self.client.drain("the agent is about to stop")
        self.network.pass_time(1)
        self.assertEqual([self.old], self.client.sessions())
        self.client.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.settle()
        self.assertEqual([], self.client.sessions())
        self.leaving.close_sessions(Code.GOING_AWAY, "over")


class LeavingTests(ClientTests):
    """A server that goes away, and nobody there yet who takes its place."""

    def test_one_attempt(self):
        """The end of the old connection is no reason for another attempt beside the first."""
        self.patch(random, "uniform", lambda low, high: high)
        self.connect()
        self.listener.drain("the server is about to stop")
        self.network.settle()
        self.start_server()
        self.network.pass_time(FIRST_DELAY - 0.1, 0.05)
        self.assertEqual(([], 1), (self.client.sessions(), self.network.attempts))
        self.network.pass_time(2)
        self.assertEqual(2, self.network.attempts)
        self.assertTrue(self.client.connected)


class StopTests(ClientTests):
    """The end of the client in each of its states: nothing may be left, nothing begins again."""

    def stop_by(self, stop):
        """Stop; then check that there is nothing left, now and later."""
        attempts = self.network.attempts
        stop()
        self.network.pass_time(1)
        self.assertEqual([], self.client.sessions())
        self.assertEqual([], self.network.open_links)
        self.network.hangs, self.network.problem = False, None
        self.clock.advance(2 * CLOSE_TIMEOUT)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(attempts, self.network.attempts)
        self.assertEqual([], self.warnings())

    def in_each_way(self, prepare):
        """Bring clients to a state, and stop each in another way."""
        for stop in (
            lambda: self.client.drain("the agent is about to stop"),
            lambda: self.client.close(Code.GOING_AWAY, "the agent has stopped"),
        ):
            self.start_server()
            self.client = self.make_client(self.issuer.node())
            prepare()
            self.events.clear()
            self.stop_by(stop)

    def test_before_start(self):
        """A client that has not begun never does."""
        self.in_each_way(lambda: None)

    def test_connecting(self):
        """An attempt is cancelled."""

        def prepare():
            self.network.hangs = True
            self.client.start()

        self.in_each_way(prepare)
        self.assertEqual(2, self.network.cancelled)
        self.assertEqual(0, self.client.failed_attempts)

    def test_waiting(self):
        """The delay before the next attempt ends."""

        def prepare():
            self.network.refuse()
            self.client.start()
            self.delay()

        self.in_each_way(prepare)

    def test_second_attempt(self):
        """An attempt that a delay has led to is cancelled as well."""

        def prepare():
            self.network.refuse()
            self.client.start()
            self.network.hangs = True
            self.clock.advance(self.delay() + 1e-6)
            self.assertEqual(0, len(self.clock.getDelayedCalls()))

        self.in_each_way(prepare)
        self.assertEqual(2, self.network.cancelled)

    def test_handshake(self):
        """A connection before the end of its handshake is aborted."""
        self.in_each_way(self.client_start)

    def client_start(self):
        """Start, and let nothing arrive."""
        self.client.start()

    def test_hello_sent(self):
        """So is one over which the server's HELLO has not come."""

        def prepare():
            self.listener.hello_received = lambda connection, hello: None
            self.client.start()
            self.network.settle()
            self.assertEqual(1, len(self.network.open_links))

        self.in_each_way(prepare)

    def test_connected(self):
        """A session without streams ends in order."""
        self.in_each_way(self.connect)
        self.assertEqual([], self.listener.sessions())

    def test_disconnected(self):
        """A live session without a connection ends when it has no streams."""

        def prepare():
            self.connect()
            self.network.cut()
            self.network.refuse()

        self.in_each_way(prepare)

    def test_disconnected_with_streams(self):
        """Closing ends it with its streams."""
        self.connect()
        _, far = self.stream()
        self.network.cut()
        self.stop_by(lambda: self.client.close(Code.GOING_AWAY, "the agent has stopped"))
        self.assertEqual(Code.GOING_AWAY, far.reasons[0].value.code)

    def test_coming_back(self):
        """So does one for which a connection is being made."""

        def prepare():
            self.connect()
            self.network.cut()
            self.clock.advance(self.delay() + 1e-6)
            self.assertEqual(1, len(self.network.open_links))

        self.in_each_way(prepare)

    def test_stop_trying(self):
        """Without a session stopTrying alone is enough."""
        self.network.refuse()
        self.client.start()
        self.events.clear()
        self.stop_by(self.client.stopTrying)

    def test_drain_with_streams(self):
        """Streams go on while the client drains; the last one's end is the session's."""
        self.connect()
        near, far = self.stream()
        self.client.drain("the agent is about to stop")
        self.network.pass_time(5)
        near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual(b"still here", bytes(far.received))
        self.events.clear()
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([], self.client.sessions())
        self.assertEqual({Code.GOING_AWAY: 1}, self.closed_with(self.server.counters))
        # That the connection ends with the session is nothing that somebody has to read.
        [told] = self.logged("info")
        self.assertIn("session ended: the session has been drained", told)

    def test_server_is_told(self):
        """The server hears that the agent has stopped: closing drops nothing that was sent."""

        def abort(transport):
            transport.stream.clear()
            transport.disconnecting = True

        self.patch(FakeTransport, "abortConnection", abort)
        self.connect()
        near, _ = self.stream()
        self.client.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.settle()
        self.assertEqual(Code.GOING_AWAY, near.reasons[0].value.code)
        self.assertIn("the agent has stopped", near.reasons[0].value.text)


class DrainTests(ClientTests):
    """A client that drains while its connection is lost: it comes back for its streams only."""

    def setUp(self):
        """Have a stream."""
        super().setUp()
        self.connect()
        self.near, self.far = self.stream()

    def drain(self):
        """Drain."""
        self.client.drain("the agent is about to stop")

    def assert_resumed_until_the_end(self):
        """Check that the stream is served, that its end is the session's, and that nobody returns.

        The client is before the attempt that resumes.
        """
        self.attempt()
        self.assertTrue(self.client.connected)
        self.near.transport.write(b"still here")
        self.network.pass_time(2)
        self.assertEqual(b"still here", bytes(self.far.received))
        self.near.transport.abortConnection()
        self.assert_over()

    def assert_over(self):
        """Check that the client has no session and wants none."""
        attempts = self.network.attempts
        self.network.pass_time(2)
        self.network.problem = None
        self.network.pass_time(2 * LONGEST_DELAY, 1)
        self.assertEqual(([], []), (self.client.sessions(), self.listener.sessions()))
        self.assertLessEqual(self.network.attempts, attempts + 1)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_lost_before(self):
        """A session whose connection is lost when the drain begins is resumed."""
        self.network.cut()
        self.drain()
        self.assert_resumed_until_the_end()

    def test_lost_meanwhile(self):
        """So is one that loses it during the drain, at either step of going away."""
        self.drain()
        self.network.cut()
        self.assert_resumed_until_the_end()

    def test_lost_late(self):
        """So is one that has gone away already."""
        self.drain()
        self.network.pass_time(2)
        self.network.cut()
        self.assert_resumed_until_the_end()

    def test_unknown_session(self):
        """A server that does not know the session gets no new one."""
        self.drain()
        self.network.cut()
        self.start_server()
        self.attempt()
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assert_over()
        self.assertEqual({Code.GOING_AWAY: 1}, self.closed_with(self.server.counters))

    def test_streams_end_meanwhile(self):
        """When the last stream ends before the client is back there is nothing to return for."""
        self.drain()
        self.network.cut()
        self.network.refuse()
        self.far.transport.abortConnection()
        self.attempt()
        self.assertEqual([], self.client.sessions())
        self.network.pass_time(30)
        self.assert_over()

    def test_window_over(self):
        """The end of the resume window is the end."""
        self.drain()
        self.network.cut()
        self.network.refuse()
        self.network.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, self.far.reasons[0].value.code)
        self.assert_over()

    def test_close(self):
        """Closing ends it while it waits to come back."""
        self.drain()
        self.network.cut()
        self.client.close(Code.GOING_AWAY, "the agent has stopped")
        self.network.pass_time(30)
        self.assert_over()


class OtherAgentTests(ClientTests):
    """Another agent of the same node takes the session."""

    def replace(self):
        """Have the session taken."""
        self.registry.find("edge-1").tunnel.close(Code.REPLACED, "another")
        self.network.settle()

    def test_waits_long(self):
        """The client waits long before it takes the session back."""
        self.connect()
        self.replace()
        self.assertEqual([], self.client.sessions())
        self.assertTrue(REPLACED_DELAY / 2 <= self.delay() <= REPLACED_DELAY, self.delay())
        self.attempt()
        self.assertTrue(self.client.connected)

    def test_longer_each_time(self):
        """It waits longer each time, up to minutes, while the sessions do not last."""
        self.patch(random, "uniform", lambda low, high: high)
        self.connect()
        delays = []
        for _ in range(7):
            self.network.pass_time(60, 5)
            self.replace()
            delays.append(self.delay())
            self.attempt()
        expected = [min(REPLACED_DELAY * 2**n, LONGEST_REPLACED_DELAY) for n in range(7)]
        for bound, delay in zip(expected, delays, strict=True):
            self.assertAlmostEqual(bound, delay, places=3)

    def test_after_a_session_that_lasted(self):
        """After a session that has lasted the delays begin anew."""
        self.patch(random, "uniform", lambda low, high: high)
        self.connect()
        for _ in range(4):
            self.replace()
            self.attempt()
        self.network.pass_time(LONGEST_REPLACED_DELAY, 5)
        self.replace()
        self.assertAlmostEqual(REPLACED_DELAY, self.delay(), places=3)

    def test_one_warning(self):
        """That it happens again and again is told of seldom."""
        self.connect()
        for _ in range(10):
            self.network.pass_time(1)
            self.replace()
            self.client._callID.reset(0)
            self.attempt()
        [warning] = self.warnings()
        self.assertIn("another agent has connected as node edge-1", warning)
        self.network.pass_time(REPLACED_WARNINGS, 5)
        self.replace()
        self.assertIn("9 more", self.warnings()[1])

    def test_is_not_woken(self):
        """Neither missing servers nor the end of another session make it come back earlier."""
        self.connect()
        self.replace()
        delay = self.delay()
        self.group.wanting = True
        self.client.look_soon()
        self.client.sibling_lost_session()
        self.assertEqual(delay, self.delay())

    def test_failure_after_it(self):
        """When it comes back and nobody answers it tries again as always."""
        self.connect()
        self.replace()
        self.network.refuse()
        self.attempt()
        self.assertLessEqual(self.delay(), 2 * FIRST_DELAY)


class SameServerTests(ClientTests):
    """Two clients of one agent that have dialed one server process at the same moment."""

    def setUp(self):
        """Have the server take the second client's session beside the first one's."""
        super().setUp()
        self.sibling = self.make_client(self.issuer.node())
        self.client.start()
        self.sibling.start()
        self.network.settle()
        self.network.pass_time(2)

    def test_stands_by(self):
        """One of them has the session, the other stands by, and streams live."""
        near, _ = self.stream()
        self.network.pass_time(5 * LONGEST_LOOK, 5)
        self.assertEqual((True, False), (self.client.standing_by, self.sibling.standing_by))
        self.assertTrue(self.sibling.connected)
        self.assertEqual(["made"], near.told)
        self.assertEqual(1, len(self.listener.sessions()))

    def test_log(self):
        """It says so once, and warns of no other agent."""
        self.network.pass_time(5 * LONGEST_LOOK, 5)
        self.assertEqual([], self.warnings())
        self.assertEqual(1, sum("stands by" in text for text in self.logged("info")))

    def test_sibling_disconnected(self):
        """While the sibling may still resume its session, that one is left alone."""
        near, _ = self.stream()
        self.network.cut()
        self.network.settle()
        self.network.pass_time(1)
        self.assertTrue(self.client.standing_by and self.sibling.connected)
        self.assertEqual(["made"], near.told)

    def test_sibling_lost_its_session(self):
        """When the sibling's session is over the client is back at once, without a warning."""
        self.patch(random, "uniform", lambda low, high: high)
        self.sibling.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.delay(), FIRST_DELAY)
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertFalse(self.client.standing_by)
        self.assertEqual([], self.warnings())

    def test_sibling_is_left(self):
        """So it is when the sibling's server goes away."""
        self.stream()
        leaving = self.listener
        self.start_server()
        leaving.drain("the server is about to stop")
        self.network.settle()
        self.assertFalse(self.client.standing_by)
        self.network.pass_time(5)
        self.assertEqual(1, len(self.listener.sessions()))
        leaving.close_sessions(Code.GOING_AWAY, "over")

    def test_waiting_sibling(self):
        """A client that waits after failures is woken by the end of its sibling's session."""
        self.network.refuse()
        self.client.look_soon()
        for _ in range(6):
            self.attempt()
        self.assertFalse(self.client.standing_by)
        self.client._callID.reset(LONGEST_DELAY)
        self.network.problem = None
        self.sibling.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.delay(), FIRST_DELAY)

    def test_restarted_server(self):
        """After a restart of the server there is one session again, whichever client's it is."""
        self.network.cut()
        self.start_server()
        self.network.pass_time(3 * LONGEST_DELAY, 1)
        clients = (self.client, self.sibling)
        self.assertEqual([False, True], sorted(client.connected for client in clients))
        self.assertEqual([False, True], sorted(client.standing_by for client in clients))
        attempts = self.network.attempts
        self.network.pass_time(3 * LONGEST_DELAY, 1)
        self.assertLessEqual(self.network.attempts, attempts + 2)

    def test_drain(self):
        """A client that stands by ends at once, and the end of its sibling does not wake it."""
        attempts = self.network.attempts
        for client in self.clients:
            client.drain("the agent is about to stop")
        self.network.pass_time(5)
        self.assertEqual(attempts, self.network.attempts)
        self.assertEqual([], self.clock.getDelayedCalls())


class NewSessionTests(ClientTests):
    """A client that begins a session anew while the old one's streams go on."""

    def test_overtaking(self):
        """The new HELLO may come before the GOAWAY for the old session: no stream ends."""
        self.patch(random, "uniform", lambda low, high: 0.0)
        self.connect()
        near, far = self.stream()
        old = self.client.sessions()[0]
        late, sent = self.network.links[0], []
        self.patch(late.client_io, "write", sent.append)
        self.client.begin_anew("the agent begins a session with other identifiers")
        self.network.settle()
        self.assertTrue(sent, "the GOAWAY is on its way")
        self.assertTrue(self.client.connected)
        self.assertEqual(2, len(self.client.sessions()))
        near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual((["made"], b"still here"), (near.told, bytes(far.received)))
        self.assertFalse(old.closed)


class HeldTests(ClientTests):
    """An address that leads to a server with which another client has a session."""

    def setUp(self):
        """Have the server refuse the second client."""
        super().setUp()
        self.connect()
        self.hellos = []
        received = self.listener.hello_received

        def keep(connection, hello):
            self.hellos.append(hello)
            received(connection, hello)

        self.patch(self.listener, "hello_received", keep)
        self.other = self.make_client(self.issuer.node())
        self.near, self.far = self.stream()
        self.other.start()
        self.network.settle()

    def look(self):
        """Let the next look of the second client take place."""
        self.clock.advance(self.wait() + 1e-6)
        self.network.settle()

    def wait(self):
        """Return the seconds until the second client looks again."""
        return self.other._callID.getTime() - self.clock.seconds()

    def test_session_lives(self):
        """The session that there is, and its streams, notice nothing."""
        self.assertEqual((True, False), (self.client.connected, self.other.connected))
        self.near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual((["made"], b"still here"), (self.near.told, bytes(self.far.received)))
        self.assertEqual(1, len(self.listener.sessions()))

    def test_no_failure(self):
        """The refusal is no failure: it is neither counted nor warned of, and told once."""
        for _ in range(3):
            self.look()
        self.assertTrue(self.other.standing_by)
        self.assertEqual((0, []), (self.other.failed_attempts, self.warnings()))
        self.assertEqual(1, sum("stands by" in text for text in self.logged("info")))

    def test_held(self):
        """Its HELLO names the server process of the other client's session, and none else."""
        [hello] = self.hellos
        self.assertEqual(self.listener.process.hex(), hello.properties["held"])
        self.network.cut()
        self.attempt()
        self.assertNotIn("held", self.hellos[-1].properties)

    def test_seldom(self):
        """As long as nothing is missing it looks every few minutes."""
        for _ in range(20):
            self.assertTrue(LONGEST_LOOK / 2 <= self.wait() <= LONGEST_LOOK, self.wait())
            self.look()

    def test_wanting(self):
        """While servers are missing it looks soon at first, and then more and more seldom."""
        self.group.wanting = True
        self.patch(random, "uniform", lambda low, high: high)
        self.other.look_soon()
        delays = []
        for _ in range(24):
            self.look()
            delays.append(self.wait())
        longest = [URGENT_DELAY] * FIRST_LOOKS
        longest += [LONGEST_DELAY] * (URGENT_LOOKS - FIRST_LOOKS)
        longest += [LONGEST_LOOK] * 4
        expected = [min(FIRST_DELAY * 2**n, each) for n, each in enumerate(longest)]
        for delay, bound in zip(delays, expected, strict=True):
            self.assertAlmostEqual(bound, delay, places=3)

    def test_lost(self):
        """When the other client's session is over this one connects at once."""
        self.client.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.wait(), FIRST_DELAY)
        self.look()
        self.assertTrue(self.other.connected)
        self.assertFalse(self.other.standing_by)

    def test_kept_for_resumption(self):
        """While the other client's session may be resumed it is not replaced."""
        self.network.cut()
        self.other.look_soon()
        self.look()
        self.assertFalse(self.other.connected)
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(["made"], self.near.told)

    def test_draining(self):
        """A client that drains holds nothing: the other one takes over before it has ended."""
        self.client.drain("the address has changed")
        self.network.settle()
        self.other.look_soon()
        self.look()
        self.assertTrue(self.other.connected)
        self.assertNotIn("held", self.hellos[-1].properties)
        self.near.transport.write(b"still here")
        self.network.pass_time(3)
        self.assertEqual((["made"], b"still here"), (self.near.told, bytes(self.far.received)))
        self.assertIs(
            self.registry.find("edge-1").tunnel.wire.peer.process, self.hellos[-1].process
        )

    def test_real_failure(self):
        """A look that finds nobody is a failure like any other."""
        self.network.refuse()
        self.look()
        self.assertEqual((1, False), (self.other.failed_attempts, self.other.standing_by))
        self.assertIn("refused", self.other.problem)


class AdvertisedTests(ClientTests):
    """What servers say of their number."""

    def advertised(self, text):
        """Connect to a server that says so, give what the client makes of it."""
        self.patch(self.listener, "_replicas", lambda: text)
        self.client.start()
        self.network.settle()
        return self.group.advertised

    def test_number(self):
        """It is known from the newest HELLO, also from one that resumes."""
        self.assertEqual(3, self.advertised(3))
        self.patch(self.listener, "_replicas", lambda: 2)
        self.network.cut()
        self.attempt()
        self.assertEqual(2, self.group.advertised)

    def test_none(self):
        """A server that does not say it leaves it unknown."""
        self.assertIsNone(self.advertised(None))

    def test_no_longer(self):
        """A server that does not know it leaves what was known."""
        self.assertEqual(3, self.advertised(3))
        self.patch(self.listener, "_replicas", lambda: None)
        self.network.cut()
        self.start_server()
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(3, self.group.advertised)

    def test_nonsense(self):
        """So does one that talks nonsense, and no number makes an agent connect without end."""
        for text in ("many", "-1", "\u0663", "1" * 5000):
            self.assertIsNone(advertised_servers(self.hello(text)), text)
        self.assertEqual(1, advertised_servers(self.hello("0")))
        self.assertEqual(MOST_SERVERS, advertised_servers(self.hello("999999999")))

    def hello(self, text):
        """Make a server's HELLO."""
        return Hello(Limits(), bytes(16), bytes(16), properties={"servers": text})


class LogTests(ClientTests):
    """What the agent's operator reads."""

    def test_once_a_message(self):
        """The same failure again and again is told once, another one is, and counted each is."""
        self.network.refuse()
        self.client.start()
        for _ in range(3):
            self.attempt()
        self.network.problem = TimeoutError()
        for _ in range(3):
            self.attempt()
        first, second = self.warnings()
        self.assertTrue(first.startswith("server.test:10262: cannot connect: "), first)
        self.assertIn("refused", first)
        self.assertNotEqual(first, second)
        self.assertEqual(7, self.client.failed_attempts)

    def test_again_after_success(self):
        """After a connection the same failure is news again."""
        self.network.refuse()
        self.client.start()
        self.network.problem = None
        self.attempt()
        self.network.cut()
        self.network.refuse()
        self.attempt()
        self.assertEqual(2, len(self.warnings()))
