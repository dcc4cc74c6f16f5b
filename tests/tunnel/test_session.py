"""Sessions on a clock: flushing, timers, lost connections and going away."""

from __future__ import annotations

import datetime
import hashlib
import random

from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.tunnel.memory import (
    SESSION_ID,
    Acceptor,
    HalfCloseUser,
    MemoryCarrier,
    Producer,
    SessionPair,
    User,
)
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IRounds, IStreamAcceptor, IStreamOpener
from yurttunnel.tunnel.session import BURST, GOAWAY_STEP
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Limits


class SessionTestCase(SynchronousTestCase):
    """Two sessions."""

    def setUp(self):
        """Join them."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)
        self.near_user, self.far_user = HalfCloseUser(), HalfCloseUser()
        self.ends = []
        for session in (self.pair.server, self.pair.agent):
            session.on_closed.append(lambda code, text, s=session: self.ends.append((s, code)))

    def join(self):
        """Open a stream."""
        self.near, self.far = self.pair.joined(self.near_user, self.far_user)
        self.pair.pump()

    def assert_no_timers(self):
        """Check that no delayed call is left."""
        self.assertEqual([], self.pair.clock.getDelayedCalls())


class IdentityTests(SessionTestCase):
    """What a session is and says."""

    def test_interfaces(self):
        """A session opens streams, and is its connection's producer."""
        self.assertTrue(verifyObject(IStreamOpener, self.pair.server))
        self.assertTrue(verifyObject(IPushProducer, self.pair.server))
        self.assertTrue(verifyObject(IStreamAcceptor, Acceptor()))

    def test_session_id(self):
        """Both ends name the session by the id that the server has given it."""
        self.assertEqual(SESSION_ID, self.pair.server.session_id)
        self.assertEqual(SESSION_ID, self.pair.agent.session_id)

    def test_snapshot(self):
        """A snapshot has the figures of the moment."""
        self.join()
        self.near.write(b"12345")
        self.far.write(b"123")
        self.pair.pass_time(1)
        snapshot = self.pair.server.snapshot()
        self.assertEqual("edge-1", snapshot.node)
        self.assertEqual(SESSION_ID.hex(), snapshot.session_id)
        self.assertEqual((1, 5, 3), (snapshot.streams, snapshot.bytes_sent, 3))
        self.assertEqual(3, snapshot.bytes_received)
        self.assertEqual("test 1", snapshot.version)
        self.assertEqual("192.0.2.1:40000", snapshot.address)
        self.assertEqual(0.0, snapshot.round_trip)
        self.assertIsNone(snapshot.certificate_not_after)
        self.assertEqual(datetime.UTC, snapshot.since.tzinfo)
        self.assertTrue(snapshot.connected)
        self.pair.cut()
        self.assertFalse(self.pair.server.snapshot().connected)

    def test_software_that_is_not_named(self):
        """A peer that does not say what it is has an unknown version."""
        self.pair.server.wire.peer.properties.clear()
        self.assertEqual("unknown", self.pair.server.snapshot().version)

    def test_bytes_are_counted(self):
        """The process counts the payload of all sessions, both ways."""
        self.join()
        for _ in range(2):
            self.near.write(bytes(500))
            self.far.write(bytes(5))
            self.pair.pump()
        server = self.pair.server_context.counters
        agent = self.pair.agent_context.counters
        self.assertEqual((1000, 10), (server.bytes_sent, server.bytes_received))
        self.assertEqual((10, 1000), (agent.bytes_sent, agent.bytes_received))
        self.assertEqual((1, 1), (server.sessions_started, agent.sessions_started))


@implementer(IRounds)
class RoundsClock(Clock):
    """A clock of which the test says when a round is going on, and when it ends."""

    def __init__(self):
        super().__init__()
        self.serving = False
        self.waiting = []

    def at_end_of_round(self, call):
        """Keep ``call`` while a round is going on."""
        if self.serving:
            self.waiting.append(call)
        return self.serving

    def call_soon(self, call, *arguments):
        """Call it in the next turn."""
        self.callLater(0, call, *arguments)

    def end_round(self):
        """Call what waits."""
        self.serving = False
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class RoundTests(SynchronousTestCase):
    """When bytes go to the connection on a reactor that serves what is ready by rounds."""

    def setUp(self):
        """Open a stream that answers, and let everything calm down."""
        self.clock = RoundsClock()
        self.pair = SessionPair(clock=self.clock)
        self.addCleanup(self.pair.close)
        self.far_user = User()
        self.near, self.far = self.pair.joined(HalfCloseUser(), self.far_user)
        self.pair.pass_time(1)
        self.carrier = self.pair.server_carrier

    def test_alone(self):
        """What is written while nothing else waits is sent within the call, each time."""
        for count in range(1, 4):
            self.near.write(b"x")
            self.assertEqual(count, len(self.carrier.sent))

    def test_a_round(self):
        """What is written in a round goes out together at its end, without a delayed call."""
        self.clock.serving = True
        calls = len(self.clock.getDelayedCalls())
        for _ in range(50):
            self.near.write(b"more")
        self.assertEqual([], self.carrier.sent)
        self.assertEqual(calls, len(self.clock.getDelayedCalls()))
        self.clock.end_round()
        self.assertEqual(1, len(self.carrier.sent))
        self.pair.pump()
        self.assertEqual(50 * b"more", self.far_user.received)

    def test_answers(self):
        """What is written to streams while the connection is read joins the others of a round."""
        self.far_user.dataReceived = self.far.write
        self.near.write(b"question")
        data = self.carrier.take(100_000)
        self.clock.serving = True
        self.far.write(b"unasked")
        self.pair.agent.data_received(data)
        self.assertEqual([], self.pair.agent_carrier.sent)
        self.clock.end_round()
        self.assertEqual(1, len(self.pair.agent_carrier.sent))
        self.assertIn(b"unasked", self.pair.agent_carrier.sent[0])
        self.assertIn(b"question", self.pair.agent_carrier.sent[0])

    def test_answers_alone(self):
        """They are sent at once, in one write, when nothing else waits."""
        self.far_user.dataReceived = self.far.write
        self.near.write(b"one")
        self.near.write(b"two")
        self.pair.agent.data_received(self.carrier.take(100_000))
        self.assertEqual(1, len(self.pair.agent_carrier.sent))

    def test_a_connection_lost_in_the_round(self):
        """What waits for the end of the round waits for the next connection then."""
        self.clock.serving = True
        self.near.write(b"x")
        self.pair.cut()
        self.clock.end_round()
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"x", self.far_user.received)

    def test_a_session_closed_in_the_round(self):
        """Nothing more is sent after the CLOSE."""
        self.clock.serving = True
        self.near.write(b"x")
        self.pair.server.close(Code.GOING_AWAY, "enough")
        sent = len(self.carrier.sent)
        self.clock.end_round()
        self.assertEqual(sent, len(self.carrier.sent))


class FlushTests(SessionTestCase):
    """When bytes go to the connection."""

    def setUp(self):
        """Open a stream, and let everything calm down."""
        super().setUp()
        self.join()
        self.pair.pass_time(1)
        self.carrier = self.pair.server_carrier

    def test_first_write_is_direct(self):
        """What is written after a pause goes to the connection within the call."""
        self.near.write(b"x")
        self.assertEqual(1, len(self.carrier.sent))

    def test_writes_are_joined(self):
        """What is written right after that goes out together, at the end of the turn."""
        self.near.write(b"first")
        for _ in range(50):
            self.near.write(b"more")
        self.assertEqual(1, len(self.carrier.sent))
        self.pair.clock.advance(0)
        self.assertEqual(2, len(self.carrier.sent))
        self.pair.pump()
        self.assertEqual(b"first" + 50 * b"more", self.far_user.received)

    def test_write_after_a_burst(self):
        """The next write is direct again once a burst is over."""
        self.near.write(b"x")
        self.pair.clock.advance(2 * BURST)
        self.near.write(b"y")
        self.assertEqual(2, len(self.carrier.sent))

    def test_answers_are_joined(self):
        """What is written while a read of the connection is dealt with goes out in one write."""
        users = []
        for _ in range(5):
            user = User()
            user.dataReceived = lambda data, u=user: u.transport.write(data)
            users.append(self.pair.joined(HalfCloseUser(), user)[0])
        self.pair.pass_time(1)
        for stream in users:
            stream.write(b"question")
        self.pair.clock.advance(0)
        data = self.carrier.take(100_000)
        self.pair.agent.data_received(data)
        self.assertEqual(1, len(self.pair.agent_carrier.sent))
        self.pair.pump()

    def test_busy_connection(self):
        """Nothing is written while the connection is busy, and everything once it is not."""
        self.pair.server.pauseProducing()
        self.near.write(b"x")
        self.pair.clock.advance(1)
        self.assertEqual([], self.carrier.sent)
        self.pair.server.resumeProducing()
        self.assertEqual(1, len(self.carrier.sent))

    def test_stopped_connection(self):
        """Nothing is written after the connection has told its producer to stop."""
        self.pair.server.stopProducing()
        self.near.write(b"x")
        self.pair.clock.advance(1)
        self.assertEqual([], self.carrier.sent)

    def test_connection_that_is_busy_at_once(self):
        """A session stops in the middle of what it has to send when the connection is full."""
        self.carrier.capacity = 0
        self.near.write(bytes(4 * self.pair.server.wire.chunk))
        self.assertEqual(1, len(self.carrier.sent))
        self.pair.pump()
        self.assertEqual(4 * self.pair.server.wire.chunk, len(self.far_user.received))


class LivenessTests(SessionTestCase):
    """Connections on which nothing comes any more."""

    def elapse_until_silent(self, limit):
        """Drop all that is sent; give the seconds until the server gives up the connection."""
        self.pair.silent = True
        seconds = 0.0
        while not self.pair.server_carrier.abandoned and seconds < limit:
            self.pair.clock.advance(0.25)
            seconds += 0.25
        return seconds

    def test_idle(self):
        """An idle peer that has fallen silent is noticed within 25 seconds."""
        self.pair.pass_time(30)
        seconds = self.elapse_until_silent(60)
        self.assertLessEqual(seconds, 25)
        self.assertGreater(seconds, 12)
        self.assertFalse(self.pair.server.connected)
        self.assertFalse(self.pair.server.closed)

    def test_busy(self):
        """With a stream open it is noticed within 7.5 seconds."""
        self.join()
        self.pair.pass_time(30)
        self.assertLessEqual(self.elapse_until_silent(60), 7.5)

    def test_peer_that_answers(self):
        """A peer that answers pings is never given up, however long nothing else happens."""
        self.join()
        self.pair.pass_time(300, 1)
        self.assertTrue(self.pair.server.connected)
        self.assertTrue(self.pair.agent.connected)

    def test_kept_for_the_resume_window(self):
        """A session whose peer fell silent is kept for the whole resume window."""
        self.join()
        self.elapse_until_silent(60)
        self.pair.clock.pump([1] * 29)
        self.assertFalse(self.pair.server.closed)
        self.pair.clock.pump([1] * 2)
        self.assertTrue(self.pair.server.closed)
        self.assertIn((self.pair.server, Code.SESSION_LOST), self.ends)
        self.assertEqual(Code.SESSION_LOST, self.near_user.reasons[0].value.code)


class ResumptionTests(SessionTestCase):
    """Sessions outlive their connections."""

    def test_return_grace(self):
        """After a loss that the peer's side told, the server keeps the session a moment only."""
        self.join()
        self.pair.cut(told=True)
        self.pair.clock.advance(0.4)
        self.assertFalse(self.pair.server.closed)
        self.pair.clock.advance(0.2)
        self.assertTrue(self.pair.server.closed)
        self.assertFalse(self.pair.agent.closed)
        self.pair.clock.advance(30)
        self.assertTrue(self.pair.agent.closed)

    def test_end_of_a_connection_that_was_not_in_order(self):
        """A peer that has not answered before it went may live: it has the resume window."""
        self.join()
        while not self.pair.agent_carrier.abandoned:
            self.pair.clock.advance(0.25)
            self.pair.server_carrier.take(1 << 20)
            self.pair.move()
        # What it gives up is reset, and so is noticed.
        self.pair.server.connection_lost(told=True)
        self.pair.clock.pump([1] * 29)
        self.assertFalse(self.pair.server.closed)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(([], []), (self.near_user.reasons, self.far_user.reasons))

    def test_return_grace_of_distant_peers(self):
        """The moment is longer for a peer that is far away."""
        pair = SessionPair(return_grace=0.5)
        pair.clock.pump([0, 1])
        pair.pump()
        self.assertEqual(1.0, pair.server.snapshot().round_trip)
        pair.cut()
        pair.clock.advance(4.4)
        self.assertFalse(pair.server.closed)
        pair.clock.advance(0.2)
        self.assertTrue(pair.server.closed)
        pair.close()

    def test_resume_window(self):
        """The resume window is the smaller one of both ends, whichever end has it."""
        short, long = Limits(resume_window=2_000), Limits(resume_window=9_000)
        for server, agent in ((short, long), (long, short)):
            pair = SessionPair(limits=server, agent_limits=agent)
            pair.cut(told=False)
            for passes, left in ((0, 2.0), (1.5, 0.5)):
                pair.clock.advance(passes)
                self.assertAlmostEqual(left, pair.server.snapshot().waits_for)
                self.assertFalse(pair.server.closed)
            pair.clock.advance(0.5)
            self.assertTrue(pair.server.closed)
            self.assertTrue(pair.agent.closed)
            self.assertEqual([], pair.clock.getDelayedCalls())

    def test_counted(self):
        """Resumptions and lost connections are counted; the first connection is neither."""
        self.pair.cut()
        self.pair.connect()
        self.pair.pump()
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual(1, context.counters.resumptions)
            self.assertEqual(1, context.counters.connections_lost)
        self.assertEqual(1, self.pair.server.snapshot().resumptions)

    def test_replaced_connection(self):
        """A new connection takes over from one that still seems to live, which is abandoned."""
        self.join()
        self.near.write(b"lost with the old one")
        old = self.pair.server_carrier
        self.pair.agent.connection_lost(told=False)
        self.pair.connect()
        self.assertTrue(old.abandoned)
        self.pair.pump()
        self.assertEqual(b"lost with the old one", self.far_user.received)
        self.assertEqual([], self.near_user.reasons)

    def test_data_both_ways(self):
        """Whatever is cut off, and however often, all bytes arrive once and in order."""
        self.join()
        chance = random.Random(3)
        sent = [chance.randbytes(600_000), chance.randbytes(600_000)]
        for stream, data in zip((self.near, self.far), sent, strict=True):
            stream.registerProducer(_Bulk(stream, data), True)
        cuts = 0
        for _ in range(100_000):
            self.pair.piece = chance.randrange(1, 30_000)
            self.pair.clock.advance(0.001)
            if not self.pair.turn() and not self.pair.turn():
                break
            if chance.random() < 0.05:
                self.pair.cut()
                self.pair.clock.advance(0.1)
                self.pair.connect()
                cuts += 1
        self.assertGreater(cuts, 3)
        for user, data in ((self.far_user, sent[0]), (self.near_user, sent[1])):
            self.assertEqual(hashlib.sha256(data).digest(), hashlib.sha256(user.received).digest())

    def test_end_under_way(self):
        """Data and the end that were under way when the connection was lost arrive after it."""
        self.join()
        self.near.write(b"last words")
        self.near.loseWriteConnection()
        self.pair.cut()
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"last words", self.far_user.received)
        self.assertEqual(["made", "read lost"], self.far_user.told)
        self.assertEqual(["made", "write lost"], self.near_user.told)

    def test_dial_while_detached(self):
        """A stream that is opened while there is no connection is opened on the next one."""
        self.pair.acceptor.answer = lambda request: request.accept()
        self.pair.cut()
        opening = self.pair.dial()
        self.pair.connect()
        self.pair.pump()
        self.successResultOf(opening)

    def test_impossible_position(self):
        """A peer that claims to have what was never sent ends the session with PROTOCOL."""
        self.pair.cut()
        with self.assertRaises(Violation) as caught:
            self.pair.server.carry(MemoryCarrier(self.pair.server), 10**9)
        self.assertEqual(Code.PROTOCOL, caught.exception.code)
        self.assertEqual([(self.pair.server, Code.PROTOCOL)], self.ends)


class _Bulk:
    """A push producer of ``data``."""

    def __init__(self, stream, data):
        self.stream = stream
        self.data = data
        self.paused = False
        self.position = 0
        stream._session.clock.callLater(0, self.go_on)

    def go_on(self):
        """Write until paused."""
        while not self.paused and self.position < len(self.data):
            position, self.position = self.position, self.position + 7_000
            self.stream.write(self.data[position : position + 7_000])

    def pauseProducing(self):
        """Write no more."""
        self.paused = True

    def resumeProducing(self):
        """Go on."""
        self.paused = False
        self.go_on()

    def stopProducing(self):
        """Write no more."""
        self.paused = True


class CloseTests(SessionTestCase):
    """The end of a session."""

    def test_close(self):
        """A close tells the peer the code; both ends tell their owners, once, and are still."""
        self.join()
        ended = self.pair.server.ended()
        self.pair.server.close(Code.REVOKED, "revoked")
        self.pair.server.close(Code.DONE, "again")
        self.successResultOf(ended)
        self.assertTrue(self.pair.server_carrier.ended)
        self.pair.pump()
        self.assertEqual(
            [(self.pair.server, Code.REVOKED), (self.pair.agent, Code.REVOKED)], self.ends
        )
        self.assertTrue(self.pair.agent_carrier.ended)
        self.assert_no_timers()

    def test_ended_already(self):
        """Who waits for the end of a session that is over waits no longer."""
        self.pair.server.close(Code.DONE, "over")
        self.successResultOf(self.pair.server.ended())

    def test_close_while_detached(self):
        """A session without a connection can be closed; no timer is left."""
        self.join()
        self.pair.cut()
        self.near.write(b"x")
        self.pair.server.close(Code.GOING_AWAY, "stop")
        self.pair.agent.close(Code.GOING_AWAY, "stop")
        self.assert_no_timers()

    def test_close_with_writes_pending(self):
        """What was to be sent at the end of the turn is dropped with its timer."""
        self.join()
        self.near.write(b"x")
        self.near.write(b"y")
        self.pair.server.close(Code.REVOKED, "revoked")
        self.pair.pump()
        self.assert_no_timers()

    def test_close_while_sending(self):
        """A session that a producer closes sends nothing more after its CLOSE."""
        self.join()
        producer = Producer()
        producer.resumeProducing = lambda: self.pair.server.close(Code.REVOKED, "revoked")
        self.near.registerProducer(producer, True)
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        self.far.resumeProducing()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.assertEqual(Code.REVOKED, self.far_user.reasons[0].value.code)

    def test_connection_lost_after_close(self):
        """The end of the connection of a session that is over changes nothing."""
        self.pair.server.close(Code.DONE, "over")
        self.pair.server.connection_lost(told=True)
        self.assertEqual(0, self.pair.server_context.counters.connections_lost)

    def test_violation(self):
        """A peer that breaks the protocol is told so, and the session is over."""
        self.pair.server.data_received(frames.frame(0xBF, 0))
        self.pair.pump()
        self.assertEqual(
            [(self.pair.server, Code.UNKNOWN_CRITICAL), (self.pair.agent, Code.UNKNOWN_CRITICAL)],
            self.ends,
        )
        self.assertEqual(
            {Code.UNKNOWN_CRITICAL: 1}, dict(self.pair.agent_context.counters.session_ends)
        )

    def test_garbage_cut_anywhere(self):
        """Garbage at any offset ends a session with a code, and raises nothing."""
        chance = random.Random(4)
        for _ in range(200):
            pair = SessionPair()
            pair.pump()
            data = chance.randbytes(60)
            cut = chance.randrange(60)
            pair.server.data_received(data[:cut])
            pair.server.data_received(data[cut:])
            pair.pump()
            pair.close()
            self.assertEqual([], pair.clock.getDelayedCalls())

    def test_memory_is_given_back(self):
        """What a session has reserved is free for others when it is over."""
        self.join()
        self.assertGreater(self.pair.agent_context.budget.used, 0)
        self.pair.server.close(Code.REVOKED, "revoked")
        self.pair.pump()
        self.assertEqual(0, self.pair.agent_context.budget.used)
        self.assertEqual(0, self.pair.server_context.budget.used)


class GoAwayTests(SessionTestCase):
    """Draining."""

    def test_two_steps(self):
        """While a stream is open new ones are served, for as long as it takes."""
        self.join()
        self.pair.agent.go_away("the agent stops")
        self.pair.pass_time(5)
        self.assertTrue(self.pair.server.going_away)
        opening = self.pair.dial()
        self.pair.pump()
        late, user = self.pair.acceptor.requests[-1].accept(), HalfCloseUser()
        late.attach(user)
        self.pair.pump()
        self.successResultOf(opening).attach(HalfCloseUser())
        self.near.abortConnection()
        self.pair.pass_time(5)
        self.assertFalse(self.pair.agent.closed)
        late.abortConnection()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.failureResultOf(self.pair.dial(), StreamFailed)

    def test_for_the_sake_of_others(self):
        """A session without streams ends when those say so with which it goes away."""
        may_end = False
        self.pair.agent.go_away("the agent stops", lambda: may_end)
        self.pair.pass_time(5)
        self.pair.agent.end_if_idle()
        near, _ = self.pair.streams()
        may_end = True
        self.pair.agent.end_if_idle()
        self.pair.pass_time(1)
        self.assertFalse(self.pair.agent.closed)
        near.abortConnection()
        self.pair.pass_time(1)
        self.assertTrue(self.pair.agent.closed)

    def test_both_go_away(self):
        """One that waits for others keeps the other end from nothing."""
        self.pair.agent.go_away("the agent stops", lambda: False)
        self.pair.pass_time(5)
        self.pair.server.go_away("the server stops")
        self.pair.pass_time(1)
        self.assertTrue(self.pair.agent.closed)

    def test_a_stream_that_comes_too_late(self):
        """One that is under way when the last one ends is told to go elsewhere."""
        self.pair.agent.go_away("the agent stops")
        self.pair.pump()
        opening = self.pair.dial()
        # The second step is on its way before the request has arrived.
        self.pair.agent_carrier.session, session = None, self.pair.agent_carrier.session
        self.pair.clock.advance(GOAWAY_STEP)
        self.pair.agent_carrier.session = session
        self.pair.pump()
        self.assertEqual(Code.GOING_AWAY, self.failureResultOf(opening, StreamFailed).value.code)

    def test_idle_session(self):
        """A session without streams ends after the second step, not before."""
        self.pair.agent.go_away("the agent stops")
        self.pair.pump()
        self.assertFalse(self.pair.agent.closed)
        self.pair.clock.advance(GOAWAY_STEP)
        self.pair.pump()
        self.assertEqual(
            [(self.pair.agent, Code.GOING_AWAY), (self.pair.server, Code.GOING_AWAY)], self.ends
        )
        self.assert_no_timers()

    def test_steps_are_two_round_trips_apart(self):
        """With a distant peer the second step waits for two round trips."""
        self.pair.clock.pump([0, 1])
        self.pair.pump()
        self.pair.agent.go_away("the agent stops")
        self.pair.clock.advance(1.9)
        self.pair.pump()
        self.assertFalse(self.pair.agent.closed)
        self.pair.clock.advance(0.2)
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)

    def test_told_once(self):
        """The peer's owner is told once that the session takes no new streams."""
        self.join()
        told = []
        self.pair.server.on_going_away.append(lambda: told.append(True))
        self.pair.agent.go_away("the agent stops")
        self.pair.agent.go_away("the agent stops")
        self.pair.pass_time(1)
        self.assertEqual([True], told)

    def test_drained(self):
        """The session ends with its last stream, whose data and end arrive first."""
        for last in (self.drain_by_near, self.drain_by_far):
            self.setUp()
            self.join()
            self.pair.agent.go_away("the agent stops")
            self.pair.pass_time(1)
            self.assertFalse(self.pair.agent.closed)
            last()
            self.pair.pump()
            self.assertTrue(self.pair.agent.closed)
            self.assertTrue(self.pair.server.closed)
            for user in (self.near_user, self.far_user):
                self.assertEqual("Connection was closed cleanly.", str(user.reasons[0].value))
            self.pair.clock.advance(0)
            self.assert_no_timers()

    def drain_by_near(self):
        """Have the server's end finish last."""
        self.far.loseWriteConnection()
        self.pair.pump()
        self.near.write(bytes(100_000))
        self.near.loseWriteConnection()
        self.pair.pump()
        self.assertEqual(100_000, len(self.far_user.received))

    def drain_by_far(self):
        """Have the end that goes away finish last."""
        self.near.loseWriteConnection()
        self.pair.pump()
        self.far.write(bytes(100_000))
        self.far.loseWriteConnection()
        self.pair.pump()
        self.assertEqual(100_000, len(self.near_user.received))

    def test_drained_by_an_end_alone(self):
        """So does an end that comes without data."""
        self.join()
        self.pair.agent.go_away("the agent stops")
        self.pair.pass_time(1)
        self.near.loseWriteConnection()
        self.pair.pump()
        self.far.loseWriteConnection()
        self.pair.pump()
        self.assertEqual(["made", "write lost", "read lost", "lost"], self.near_user.told)
        self.assertTrue(self.pair.agent.closed)

    def test_drained_and_cut(self):
        """A connection that breaks under the last words does not take them with it."""
        self.join()
        self.pair.agent.go_away("the agent stops")
        self.pair.pass_time(1)
        self.near.loseWriteConnection()
        self.pair.pump()
        self.far.write(b"last words")
        self.far.loseWriteConnection()
        # They are in the connection, which nobody has read.
        self.pair.clock.advance(0)
        self.assertTrue(self.pair.agent_carrier.size)
        self.assertFalse(self.pair.agent.closed)
        self.pair.cut()
        self.assertFalse(self.pair.agent.closed)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"last words", self.near_user.received)
        self.assertEqual(["made", "write lost", "read lost", "lost"], self.near_user.told)
        self.assertTrue(self.pair.agent.closed)
        self.assertTrue(self.pair.server.closed)

    def test_drained_on_a_busy_connection(self):
        """A session whose connection is busy ends once the last bytes are in it."""
        self.join()
        self.pair.agent.go_away("the agent stops")
        self.pair.pass_time(1)
        self.near.loseWriteConnection()
        self.pair.pump()
        self.pair.agent.pauseProducing()
        self.far.write(b"last words")
        self.far.loseWriteConnection()
        self.pair.pump()
        self.assertFalse(self.pair.agent.closed)
        self.pair.agent.resumeProducing()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.assertEqual(b"last words", self.near_user.received)

    def test_drained_with_the_end_waiting(self):
        """What comes in meanwhile does not end the session before the last end is sent."""
        self.join()
        self.pair.agent.go_away("the agent stops")
        self.pair.pass_time(1)
        self.near.loseWriteConnection()
        self.pair.pump()
        self.pair.agent.pauseProducing()
        self.far.loseWriteConnection()
        self.pair.agent.data_received(frames.offset_frame(frames.PING, 0, 1))
        self.assertFalse(self.pair.agent.closed)
        self.pair.agent.resumeProducing()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.assertIn("read lost", self.near_user.told)

    def test_close_while_going_away(self):
        """A session that is closed between the two steps leaves no timer."""
        self.pair.agent.go_away("the agent stops")
        self.pair.agent.close(Code.GOING_AWAY, "now")
        self.pair.pump()
        self.assert_no_timers()

    def test_go_away_after_close(self):
        """A session that is over does not go away."""
        self.pair.agent.close(Code.DONE, "over")
        self.pair.agent.go_away("the agent stops")
        self.pair.pump()
        self.assert_no_timers()
