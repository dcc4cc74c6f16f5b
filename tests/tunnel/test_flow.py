"""Many streams in one session: isolation, fairness, and memory."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.tunnel.memory import MIB, HalfCloseUser, SessionPair, User
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.tunnel.stream import TunnelStream
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits
from yurttunnel.wire.stream import FULL_ABOVE

PIECE = 16 * 1024


class Endless:
    """A push producer without an end, which counts the written bytes."""

    data = bytes(PIECE)

    def __init__(self, stream):
        self.stream = stream
        self.written = 0
        self.paused = False
        stream.registerProducer(self, True)
        self.resumeProducing()

    def resumeProducing(self):
        """Write until paused."""
        self.paused = False
        while not self.paused:
            self.written += len(self.data)
            self.stream.write(self.data)

    def pauseProducing(self):
        """Stop writing."""
        self.paused = True

    stopProducing = pauseProducing


class Count(User):
    """Counts bytes instead of storing them."""

    total = 0

    def dataReceived(self, data):
        """Count the bytes."""
        self.total += len(data)


class FlowTestCase(SynchronousTestCase):
    """A pair of sessions."""

    def setUp(self):
        """Connect the sessions."""
        self.pair = SessionPair()
        self.addCleanup(lambda: self.pair.close())

    def bulk(self, count):
        """Open streams, and return producers that start writing when called."""
        joined = []
        for _ in range(count):
            user = Count()
            near, far = self.pair.joined(HalfCloseUser(), user)
            joined.append((near, far, user))
        return joined


class IsolationTests(FlowTestCase):
    """Streams without a reader."""

    def stalled(self, count):
        """Fill streams that the far end does not read."""
        stalled = []
        for near, far, _ in self.bulk(count):
            far.pauseProducing()
            stalled.append((Endless(near), far))
        self.pair.pump()
        return stalled

    def test_fifth_stream_flows(self):
        """While four readers are stalled a fifth stream transfers megabytes in both directions."""
        stalled = self.stalled(4)
        near_user, far_user = Count(), Count()
        near, far = self.pair.joined(near_user, far_user)
        near.write(bytes(4 * MIB))
        far.write(bytes(4 * MIB))
        self.pair.pump()
        self.assertEqual((4 * MIB, 4 * MIB), (near_user.total, far_user.total))
        for producer, _ in stalled:
            self.assertTrue(producer.paused)

    def test_waiting_ends_are_not_visited(self):
        """Ended streams that wait for a reader cost the others no time."""
        stalled = []
        for near, far, _ in self.bulk(20):
            far.pauseProducing()
            near.write(bytes(MIB))
            near.loseWriteConnection()
            stalled.append((near.user, far))
        user = User()
        near, far = self.pair.joined(user, User())
        far.user.dataReceived = far.write
        self.pair.pump()
        looked_at = []
        settle_end = TunnelStream.settle_end
        self.patch(
            TunnelStream,
            "settle_end",
            lambda stream: looked_at.append(stream) or settle_end(stream),
        )
        near.write(b"question")
        self.pair.pump()
        self.assertEqual((b"question", []), (user.received, looked_at))
        for ended, far in stalled:
            self.assertEqual(["made"], ended.events)
            far.resumeProducing()
        self.pair.pump()
        for ended, _ in stalled:
            self.assertEqual(["made", "write lost"], ended.events[:2])

    def test_same_turns_as_undisturbed(self):
        """A question and its answer take as many iterations with stalled streams as without."""
        turns = []
        for stall in (False, True):
            if stall:
                self.stalled(4)
            asker = HalfCloseUser()
            echo = User()
            echo.dataReceived = lambda data, echo=echo: echo.transport.write(data)
            near, _ = self.pair.joined(asker, echo)
            self.pair.pass_time(1)
            near.write(b"question")
            count = 0
            while not asker.received:
                self.pair.turn()
                count += 1
            turns.append(count)
        self.assertEqual(turns[0], turns[1])

    def test_stalled_streams_go_on(self):
        """A stalled stream continues where it was once it is read."""
        [(producer, far)] = self.stalled(1)
        user = far.user
        far.resumeProducing()
        for _ in range(50):
            self.pair.turn()
        self.assertGreater(user.total, MIB // 2)
        far.pauseProducing()
        self.pair.pump()
        window = far._wire.window.size
        self.assertLessEqual(producer.written - user.total, window + FULL_ABOVE + PIECE)

    def test_many_stalled_streams(self):
        """However many streams are stalled, a new one that fits into the budget works."""
        self.stalled(200)
        user = Count()
        near, _ = self.pair.joined(HalfCloseUser(), user)
        near.write(bytes(MIB))
        self.pair.pump()
        self.assertEqual(MIB, user.total)


class FairnessTests(FlowTestCase):
    """Streams that all have data to send."""

    def test_eight_bulk_streams(self):
        """Eight bulk streams share a connection evenly."""
        self.pair.server_carrier.capacity = 128 * 1024
        joined = self.bulk(8)
        for near, _, _ in joined:
            Endless(near)
        while sum(user.total for _, _, user in joined) < 32 * MIB:
            self.pair.clock.advance(0.0005)
            self.pair.turn()
        totals = [user.total for _, _, user in joined]
        self.assertLess(max(totals) - min(totals), 0.1 * max(totals), totals)
        self.end(joined)

    def end(self, joined):
        """Stop the endless producers."""
        for near, _, _ in joined:
            near.abortConnection()
        self.pair.pump()

    def test_interactive_beside_bulk(self):
        """An interactive stream overtakes bulk data that waits for the connection."""
        self.pair.server_carrier.capacity = 128 * 1024
        joined = self.bulk(8)
        for near, _, _ in joined:
            Endless(near)
        user = Count()
        near, _ = self.pair.joined_while_busy(HalfCloseUser(), user)
        for _ in range(20):
            # A stream that has just sent waits for a quantum of each other; each has had it by now.
            before = sum(bulk.total for _, _, bulk in joined)
            while sum(bulk.total for _, _, bulk in joined) < before + MIB:
                self.pair.clock.advance(0.0005)
                self.pair.turn()
            before = sum(bulk.total for _, _, bulk in joined)
            received = user.total
            near.write(b"key")
            while user.total == received:
                self.pair.clock.advance(0.0005)
                self.pair.turn()
            # Data in the connection precedes it: its capacity, and the chunk that filled it.
            bulk = sum(bulk.total for _, _, bulk in joined) - before
            self.assertLess(bulk, 2 * (128 * 1024 + self.pair.server.wire.chunk))
        self.end(joined)


class MemoryTests(FlowTestCase):
    """Memory limits."""

    def test_windows_stay_in_the_budget(self):
        """Streams above the memory budget are refused, and the promised memory is limited."""
        limits = Limits(session_window=4 * MIB, stream_window=64 * 1024)
        self.pair.close()
        self.pair = SessionPair(limits)
        refused = 0
        self.pair.acceptor.answer = lambda request: request.accept()
        opened = []
        for _ in range(100):
            self.pair.dial().addCallbacks(opened.append, lambda reason: None)
            self.pair.pump()
        refused = 100 - len(opened)
        self.assertEqual(3 * MIB // (64 * 1024), len(opened))
        self.assertGreater(refused, 0)
        for stream in opened:
            stream.write(bytes(MIB))
        self.pair.pump()
        agent = self.pair.agent.wire
        kept = sum(len(piece) for stream in agent.streams.values() for piece in stream.backlog)
        self.assertEqual(3 * MIB, kept)
        self.assertEqual(3 * MIB, agent.memory.used)

    def test_refusal_is_overloaded(self):
        """A stream refused for lack of memory fails with OVERLOADED: a retry may succeed."""
        self.pair.server_context.budget.limit = 0
        error = self.failureResultOf(self.pair.dial(), StreamFailed).value
        self.assertEqual(Code.OVERLOADED, error.code)

    def test_unacknowledged_data(self):
        """The log for retransmission stays small while the peer acknowledges."""
        joined = self.bulk(4)
        for near, _, _ in joined:
            Endless(near)
        largest = 0
        while sum(user.total for _, _, user in joined) < 16 * MIB:
            self.pair.clock.advance(0.0005)
            self.pair.turn()
            largest = max(largest, self.pair.server.wire.unacknowledged)
        self.assertLess(largest, 2 * MIB)
        for near, _, _ in joined:
            near.abortConnection()
        self.pair.pump()

    def test_nothing_is_left(self):
        """When all streams have ended nothing of them is left, and all data is acknowledged."""
        joined = self.bulk(20)
        for near, far, _ in joined:
            near.write(bytes(100_000))
            near.loseConnection()
            far.loseConnection()
        self.pair.pass_time(1)
        for session, context in (
            (self.pair.server, self.pair.server_context),
            (self.pair.agent, self.pair.agent_context),
        ):
            self.assertEqual({}, session.wire.streams)
            self.assertEqual(0, session.wire.unacknowledged)
            self.assertEqual(0, context.budget.used)
            self.assertEqual(20, context.counters.stream_ends.total())
