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
from yurttunnel.agent.client import (
    FIRST_DELAY,
    LONGEST_DELAY,
    REPLACED_RETRIES,
    ClientSettings,
    ServerClient,
)
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT, HELLO_TIMEOUT
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits


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
        self.clients = []
        self.settings = ClientSettings("edge-1", "host=edge-1", Limits(), "test 1")
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
        client = ServerClient(self.context, server, endpoint, self.settings, self.clients)
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
        """Give the seconds until the next attempt, for which the client waits."""
        call = self.client._callID
        self.assertIsNotNone(call, "no attempt is to come")
        return call.getTime() - self.clock.seconds()

    def attempt(self):
        """Let the client's next attempt take place."""
        self.clock.advance(self.delay() + 1e-6)
        self.network.settle()

    def warnings(self):
        """Give the warnings that the client has logged."""
        return self.logged("warn")

    def logged(self, level):
        """Give what the client has logged with a level."""
        return [
            formatEvent(event)
            for event in self.events
            if event["log_namespace"].endswith("ServerClient") and event["log_level"].name == level
        ]

    def closed_with(self, counters):
        """Give how sessions have ended."""
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

    def test_replaced(self):
        """A client that another agent of the same node has replaced waits much longer."""
        self.connect()
        session = self.client.sessions()[0]
        self.registry.find("edge-1").tunnel.close(Code.REPLACED, "another")
        self.network.settle()
        self.assertTrue(session.closed)
        self.assertEqual(REPLACED_RETRIES + 1, self.client.retries)
        delays = []
        for _ in range(50):
            self.client.stopTrying()
            self.client.continueTrying = True
            self.client.retries = REPLACED_RETRIES
            self.client.retry()
            delays.append(self.delay())
        self.assertGreater(max(delays), 10)
        self.attempt()
        [warning] = self.warnings()
        self.assertIn("running twice", warning)


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
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.assertEqual([], self.client.sessions())
        self.assertEqual({Code.GOING_AWAY: 1}, self.closed_with(self.server.counters))

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


class SiblingTests(ClientTests):
    """Two addresses of one agent that lead to one server process."""

    def setUp(self):
        """Have the second address's session replace the first one's."""
        super().setUp()
        self.connect()
        self.sibling = self.make_client(self.issuer.node())
        self.sibling.start()
        self.network.settle()

    def test_stands_by(self):
        """The client that was replaced does not connect: the sibling's streams live."""
        near, _ = self.stream()
        self.network.pass_time(5 * LONGEST_DELAY, 1)
        self.assertEqual((True, False), (self.client.standing_by, self.sibling.standing_by))
        self.assertTrue(self.sibling.connected)
        self.assertEqual((2, ["made"]), (self.network.attempts, near.told))
        self.assertEqual(1, len(self.listener.sessions()))

    def test_log(self):
        """It says so once, and warns of no other agent."""
        self.network.pass_time(5 * LONGEST_DELAY, 1)
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

    def test_sibling_goes_to_another_server(self):
        """When the sibling's address leads elsewhere, the client's own server gets it back."""
        self.patch(self.sibling, "has_session_at", lambda process: False)
        self.attempt()
        self.assertTrue(self.client.connected)

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
        self.assertEqual(attempts, self.network.attempts)

    def test_drain(self):
        """A client that stands by ends at once, and the end of its sibling does not wake it."""
        for client in self.clients:
            client.drain("the agent is about to stop")
        self.network.pass_time(5)
        self.assertEqual(2, self.network.attempts)
        self.assertEqual([], self.clock.getDelayedCalls())


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
