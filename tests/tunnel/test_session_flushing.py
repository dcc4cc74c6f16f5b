"""When a session sends its data."""

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
    """A clock with rounds that the test controls."""

    def __init__(self):
        super().__init__()
        self.serving = False
        self.waiting = []

    def at_end_of_round(self, call):
        """Store ``call`` during a round."""
        if self.serving:
            self.waiting.append(call)
        return self.serving

    def call_soon(self, call, *arguments):
        """Call it in the next iteration."""
        self.callLater(0, call, *arguments)

    def end_round(self):
        """Run the stored calls."""
        self.serving = False
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class RoundTests(SynchronousTestCase):
    """When data is sent on a reactor with rounds."""

    def setUp(self):
        """Open a stream that echoes, and let everything settle."""
        self.clock = RoundsClock()
        self.pair = SessionPair(clock=self.clock)
        self.addCleanup(self.pair.close)
        self.far_user = User()
        self.near, self.far = self.pair.joined(HalfCloseUser(), self.far_user)
        self.pair.pass_time(1)
        self.carrier = self.pair.server_carrier

    def test_alone(self):
        """Data written outside of a round is sent within the call, each time."""
        for count in range(1, 4):
            self.near.write(b"x")
            self.assertEqual(count, len(self.carrier.sent))

    def test_a_round(self):
        """Data written in a round is sent together at its end, without a delayed call."""
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
        """Data written while the connection is read is sent with the rest of the round."""
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
        """Outside of a round it is sent at once, in one write."""
        self.far_user.dataReceived = self.far.write
        self.near.write(b"one")
        self.near.write(b"two")
        self.pair.agent.data_received(self.carrier.take(100_000))
        self.assertEqual(1, len(self.pair.agent_carrier.sent))

    def test_a_connection_lost_in_the_round(self):
        """Data for the end of the round is sent on the next connection."""
        self.clock.serving = True
        self.near.write(b"x")
        self.pair.cut()
        self.clock.end_round()
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"x", self.far_user.received)

    def test_a_session_closed_in_the_round(self):
        """Nothing is sent after the CLOSE."""
        self.clock.serving = True
        self.near.write(b"x")
        self.pair.server.close(Code.GOING_AWAY, "enough")
        sent = len(self.carrier.sent)
        self.clock.end_round()
        self.assertEqual(sent, len(self.carrier.sent))


class FlushTests(SessionTestCase):
    """When data is sent on a reactor without rounds."""

    def setUp(self):
        """Open a stream, and let everything settle."""
        super().setUp()
        self.join()
        self.pair.pass_time(1)
        self.carrier = self.pair.server_carrier

    def test_first_write_is_direct(self):
        """Data written after a pause is sent within the call."""
        self.near.write(b"x")
        self.assertEqual(1, len(self.carrier.sent))

    def test_writes_are_joined(self):
        """Data written right after that is sent together, at the end of the iteration."""
        self.near.write(b"first")
        for _ in range(50):
            self.near.write(b"more")
        self.assertEqual(1, len(self.carrier.sent))
        self.pair.clock.advance(0)
        self.assertEqual(2, len(self.carrier.sent))
        self.pair.pump()
        self.assertEqual(b"first" + 50 * b"more", self.far_user.received)

    def test_write_after_a_burst(self):
        """The next write is direct again after a burst."""
        self.near.write(b"x")
        self.pair.clock.advance(2 * BURST)
        self.near.write(b"y")
        self.assertEqual(2, len(self.carrier.sent))

    def test_answers_are_joined(self):
        """Data written while a read of the connection is processed is sent in one write."""
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
        """Nothing is sent while the connection is congested, and everything afterwards."""
        self.pair.server.pauseProducing()
        self.near.write(b"x")
        self.pair.clock.advance(1)
        self.assertEqual([], self.carrier.sent)
        self.pair.server.resumeProducing()
        self.assertEqual(1, len(self.carrier.sent))

    def test_stopped_connection(self):
        """Nothing is sent after the connection has stopped its producer."""
        self.pair.server.stopProducing()
        self.near.write(b"x")
        self.pair.clock.advance(1)
        self.assertEqual([], self.carrier.sent)

    def test_connection_that_is_busy_at_once(self):
        """A session stops sending when the connection is congested."""
        self.carrier.capacity = 0
        self.near.write(bytes(4 * self.pair.server.wire.chunk))
        self.assertEqual(1, len(self.carrier.sent))
        self.pair.pump()
        self.assertEqual(4 * self.pair.server.wire.chunk, len(self.far_user.received))
