"""When a session's bytes go to its connection."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.tunnel.memory import HalfCloseUser, SessionPair, User
from tests.tunnel.sessions import SessionTestCase
from yurttunnel.tunnel.session import BURST
from yurttunnel.tunnel.transports import IRounds
from yurttunnel.wire.codes import Code


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
