"""Unit tests of the parts of a session: credit, liveness, scheduling, the send log."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import REQUEST, Frame, frames_in
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import (
    GROWTH,
    LONG_GROWTH,
    MAX_STREAM_WINDOW,
    MIN_ROUND_TRIP,
    MemoryBudget,
    ReceiveWindow,
    tune,
)
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.liveness import Liveness
from yurttunnel.wire.pieces import JOIN_BELOW, Buffer
from yurttunnel.wire.scheduler import FairQueue
from yurttunnel.wire.send_log import SendLog
from yurttunnel.wire.stream import FULL_ABOVE, Stream, StreamState

KIB = 1024
PLENTY = 1 << 40


class MemoryBudgetTests(SynchronousTestCase):
    """The bytes that may be promised."""

    def test_limit(self) -> None:
        """All of the limit can be reserved, and not a byte more."""
        budget = MemoryBudget(100)
        self.assertTrue(budget.reserve(60))
        self.assertFalse(budget.reserve(41))
        self.assertTrue(budget.reserve(40))
        budget.release(60)
        self.assertEqual(40, budget.used)

    def test_growth_leaves_half(self) -> None:
        """Windows grow only into the first half of the limit, as far as there is room."""
        budget = MemoryBudget(100)
        self.assertEqual([40, 10, 0], [budget.reserve_growth(size) for size in (40, 40, 40)])
        self.assertTrue(budget.reserve(50))
        self.assertEqual(0, budget.reserve_growth(1))
        self.assertEqual(100, budget.used)

    def test_share(self) -> None:
        """Streams that have grown share half of the limit equally, among those of all sessions."""
        shared = MemoryBudget(240)
        one, two = MemoryBudget(200, shared), MemoryBudget(100, shared)
        self.assertEqual((100, 50), (one.share, two.share))
        for _ in range(3):
            one.count_grown(1)
        two.count_grown(1)
        self.assertEqual((30, 30), (one.share, two.share))
        one.count_grown(-1)
        one.count_grown(-1)
        self.assertEqual((60, 50), (one.share, two.share))

    def test_parent(self) -> None:
        """Bytes are reserved in the shared budget too, or in neither."""
        shared = MemoryBudget(100)
        one, two = MemoryBudget(80, shared), MemoryBudget(80, shared)
        self.assertTrue(one.reserve(70))
        self.assertFalse(two.reserve(31))
        self.assertEqual(0, two.reserve_growth(1))
        self.assertEqual((70, 70, 0), (shared.used, one.used, two.used))
        one.release(70)
        self.assertTrue(two.reserve(80))
        self.assertEqual((80, 0, 80), (shared.used, one.used, two.used))


class TuneTests(SynchronousTestCase):
    """Windows adapt to the user and the path."""

    INITIAL = 64 * KIB

    def setUp(self) -> None:
        """Reserve a window."""
        self.budget = MemoryBudget(64 * KIB * KIB)
        self.budget.reserve(self.INITIAL)
        self.window = ReceiveWindow(self.INITIAL, self.INITIAL // 2, 0.0)
        self.most = MAX_STREAM_WINDOW

    def tune(self, now: float, round_trip: float | None = 0.1) -> int:
        """Tune the window; return its size."""
        tune(self.window, now, round_trip, self.INITIAL, self.most, self.budget)
        self.assertEqual(self.window.size, self.budget.used)
        self.assertEqual(self.window.size // 2, self.window.threshold)
        return self.window.size

    @conformance("C-089")
    def test_fast_window_grows(self) -> None:
        """A window grows if half is consumed in less than two round trips, more on a long path."""
        self.assertEqual(self.INITIAL, self.tune(0.2))
        self.assertEqual(LONG_GROWTH * self.INITIAL, self.tune(0.199))
        self.assertEqual(GROWTH * LONG_GROWTH * self.INITIAL, self.tune(0.0, MIN_ROUND_TRIP))

    def test_unknown_round_trip(self) -> None:
        """A window does not change before the round trip is known."""
        self.assertEqual(self.INITIAL, self.tune(0.0, None))

    @conformance("C-089")
    def test_largest_window(self) -> None:
        """A window grows to at most 16 MiB, also from a size that does not divide it."""
        self.assertEqual(KIB * KIB, self.tune(0.0))
        self.assertEqual(MAX_STREAM_WINDOW, self.tune(0.0))
        self.assertEqual(MAX_STREAM_WINDOW, self.tune(0.0))
        self.budget.release(13 * KIB * KIB)
        self.window.size = 3 * KIB * KIB
        self.assertEqual(MAX_STREAM_WINDOW, self.tune(0.0))

    @conformance("C-089")
    def test_growth_within_the_budget(self) -> None:
        """A window does not grow beyond half of the budget."""
        self.budget.limit = 4 * self.INITIAL
        for _ in range(20):
            self.tune(0.0)
        self.assertEqual(2 * self.INITIAL, self.window.size)

    @conformance("C-090")
    def test_slow_window_halves(self) -> None:
        """A window is halved if half of it lasts over five seconds, down to its initial size."""
        self.most = 3 * self.INITIAL
        self.assertEqual(3 * self.INITIAL, self.tune(0.0))
        self.assertEqual(3 * self.INITIAL, self.tune(5.0))
        self.assertEqual(3 * self.INITIAL // 2, self.tune(5.1))
        self.assertEqual([self.INITIAL] * 2, [self.tune(5.1), self.tune(5.1)])

    def test_short_path(self) -> None:
        """On the shortest path a round trip counts as five milliseconds."""
        self.assertEqual(self.INITIAL, self.tune(2 * MIN_ROUND_TRIP, 0.0))
        self.assertLess(self.INITIAL, self.tune(2 * MIN_ROUND_TRIP - 0.001, 0.0))

    def test_long_path(self) -> None:
        """A window that lasts long only because the path is long does not shrink."""
        self.most = 2 * self.INITIAL
        self.tune(0.0)
        self.assertEqual(2 * self.INITIAL, self.tune(5.1, 3.0))
        self.assertEqual(self.INITIAL, self.tune(6.0, 3.0))

    def test_small_steps_when_memory_gets_scarce(self) -> None:
        """With a quarter of the memory used, here or in the larger budget, windows only double."""
        for budget in (MemoryBudget(1000, MemoryBudget(4000)), MemoryBudget(4000)):
            self.assertTrue(budget.is_ample)
        parent = MemoryBudget(400 * self.INITIAL)
        self.budget = MemoryBudget(400 * self.INITIAL, parent)
        self.budget.reserve(self.INITIAL)
        parent.charge(100 * self.INITIAL)
        self.assertFalse(self.budget.is_ample)
        self.assertEqual(GROWTH * self.INITIAL, self.tune(0.0))
        parent.release(100 * self.INITIAL)
        self.assertEqual(LONG_GROWTH * GROWTH * self.INITIAL, self.tune(0.0))

    @conformance("C-089")
    def test_share(self) -> None:
        """A window grows to at most its share, and shrinks to a smaller one by half at a time."""
        self.most = 7 * self.INITIAL
        self.assertEqual([7 * self.INITIAL] * 2, [self.tune(0.0), self.tune(0.0)])
        self.most = 3 * self.INITIAL
        self.assertEqual(7 * self.INITIAL // 2, self.tune(0.0))
        self.assertEqual([3 * self.INITIAL] * 2, [self.tune(0.0), self.tune(0.0)])

    def test_since_the_first_byte(self) -> None:
        """Idle time does not count, unless data was held."""
        window = self.window
        self.assertEqual((0.0, 0), (window.since, window.consumed_at_grant))
        window.received, window.consumed = 5000, 4000
        window.grant(7.0)
        self.assertEqual((7.0, 4000), (window.since, window.consumed_at_grant))

    @given(
        st.lists(
            st.tuples(
                st.floats(0, 20),
                st.none() | st.floats(0, 4),
                st.integers(0, 8 << 20),
                st.booleans(),
            ),
            max_size=30,
        )
    )
    def test_credit_is_never_taken_back(
        self, grants: list[tuple[float, float | None, int, bool]]
    ) -> None:
        """Whatever happens to a window, no grant is lower than the one before."""
        budget = MemoryBudget(8 << 20)
        budget.reserve(self.INITIAL)
        window = ReceiveWindow(self.INITIAL, self.INITIAL // 2, 0.0)
        now = 0.0
        for elapsed, round_trip, most, all_of_it in grants:
            now += elapsed
            last = window.limit
            window.consumed = last if all_of_it else last - window.threshold
            tune(window, now, round_trip, self.INITIAL, max(most, self.INITIAL), budget)
            self.assertGreaterEqual(window.grant(now), last)
            self.assertEqual(window.size, budget.used)


class LivenessTests(SynchronousTestCase):
    """PINGs and their answers."""

    def setUp(self) -> None:
        """Start a connection with an interval of ten seconds."""
        self.liveness = Liveness(10.0, follows=True)
        self.liveness.connected(100.0)

    def test_first_ping_at_once(self) -> None:
        """The first PING of a connection is due at once, the next after the interval."""
        self.assertTrue(self.liveness.is_ping_due(100.0, busy=False))
        self.liveness.pinged(100.0)
        self.assertFalse(self.liveness.is_ping_due(109.9, busy=False))
        self.assertTrue(self.liveness.is_ping_due(110.0, busy=False))

    def test_busy(self) -> None:
        """With open streams a PING is due four times as often."""
        self.liveness.pinged(100.0)
        self.assertEqual(102.5, self.liveness.deadline(busy=True))
        self.assertTrue(self.liveness.is_ping_due(102.5, busy=True))

    def test_silence_is_reported_once(self) -> None:
        """A silent connection is reported once, and again after the same time."""
        self.liveness.pinged(0.0)
        self.assertFalse(self.liveness.silent(14.9, busy=False))
        self.assertTrue(self.liveness.silent(15.0, busy=False))
        self.assertFalse(self.liveness.silent(15.0, busy=False))
        self.liveness.pinged(15.0)
        self.assertTrue(self.liveness.silent(30.0, busy=False))


UNIT = JOIN_BELOW // 2
"""Two pieces of this size are joined, three are not."""


class SendLogTests(SynchronousTestCase):
    """Data that is kept until it is acknowledged."""

    content = bytes(number % 251 for number in range(9 * UNIT))

    def setUp(self) -> None:
        """Store three chunks."""
        self.log = SendLog()
        self.keep(self.log)

    def keep(self, log: SendLog) -> None:
        """Store chunks of three, four and two units."""
        for start, end in ((0, 3), (3, 7), (7, 9)):
            log.append(self.content[start * UNIT : end * UNIT])

    def to_retransmit(self) -> bytes:
        """Collect all retransmitted data."""
        self.log.rewind()
        collected = b""
        while chunk := self.log.next_retransmission():
            collected += chunk
        return collected

    def test_budget(self) -> None:
        """Stored data is charged to the budget, and to the larger one, until it is dropped."""
        process = MemoryBudget(100 * UNIT)
        log = SendLog(MemoryBudget(50 * UNIT, process))
        self.keep(log)
        self.assertEqual(9 * UNIT, process.used)
        log.acknowledge(4 * UNIT)
        self.assertEqual((6 * UNIT, 6 * UNIT), (log.size, process.used))
        log.drop()
        self.assertEqual((0, 0, b""), (log.size, process.used, log.next_retransmission()))

    def test_acknowledge(self) -> None:
        """A chunk is dropped once all of it is acknowledged."""
        kept = []
        for position in range(10):
            news = self.log.acknowledge(position * UNIT)
            self.assertEqual(UNIT if position else 0, news)
            kept.append(self.log.size // UNIT)
        self.assertEqual([9, 9, 9, 6, 6, 6, 6, 2, 2, 0], kept)

    def test_small_chunks_are_kept_joined(self) -> None:
        """Small chunks do not cost many times their size, however small they are."""
        log = SendLog()
        for number in range(10_000):
            log.append(number.to_bytes(2, "big"))
        self.assertEqual(20_000, log.size)
        log.rewind()
        self.assertLessEqual(len(log.to_retransmit), 20_000 // JOIN_BELOW + 1)
        log.acknowledge(20_000)
        self.assertEqual(0, log.size)

    @conformance("C-101")
    def test_again(self) -> None:
        """Exactly the unacknowledged data is retransmitted, as often as needed."""
        content = self.content
        for position in (0, 1, UNIT, 3 * UNIT - 1, 3 * UNIT, 3 * UNIT + 1, 8 * UNIT):
            self.log.acknowledge(position)
            self.assertEqual(content[position:], self.to_retransmit())
            self.log.append(b"more")
            content += b"more"
            self.assertEqual(content[position:], self.to_retransmit())
        self.log.acknowledge(len(content))
        self.assertEqual(b"", self.to_retransmit())

    @conformance("C-100")
    def test_impossible_acknowledgements(self) -> None:
        """A position that was not sent, or that decreases, cannot be acknowledged."""
        self.log.acknowledge(4)
        for position in (3, 9 * UNIT + 1):
            violation = self.assertRaises(Violation, self.log.acknowledge, position)
            self.assertEqual(Code.PROTOCOL, violation.code)
        self.assertEqual(0, self.log.acknowledge(4))


def stream(number: int, credit: int = PLENTY, max_frame: int = 1 << 20) -> Stream:
    """Return an open stream."""
    window = ReceiveWindow(1, 0, 0.0)
    return Stream(number, StreamState.OPEN, REQUEST, window, credit, max_frame)


class StreamTests(SynchronousTestCase):
    """The two buffers of a stream."""

    def take(self, one: Stream, allowance: int) -> list[Frame]:
        """Take frames, as far as there are any."""
        parts: list[Buffer] = []
        if one.pending_size:
            one.take(parts, allowance)
        return frames_in(b"".join(parts))

    @conformance("C-034")
    @given(
        st.lists(st.binary(min_size=1, max_size=40), max_size=10),
        st.integers(1, 30),
        st.lists(st.integers(1, 50), min_size=1, max_size=10),
    )
    def test_take(self, pieces: list[bytes], max_frame: int, allowances: list[int]) -> None:
        """The taken data is the pushed data, in frames of at most the maximum size."""
        one = stream(1, max_frame=max_frame)
        for piece in pieces:
            one.push(piece)
        taken = b""
        for allowance in allowances * 50:
            found = self.take(one, allowance)
            self.assertLessEqual(sum(len(frame[2]) for frame in found), allowance)
            for kind, number, payload in found:
                self.assertEqual((frames.DATA, 1), (kind, number))
                self.assertTrue(1 <= len(payload) <= max_frame)
                taken += payload
        self.assertTrue(taken == b"".join(pieces) or sum(allowances) * 50 < 400)
        self.assertTrue(b"".join(pieces).startswith(taken))

    @conformance("C-068")
    def test_end_after_the_last_byte(self) -> None:
        """FIN follows the last byte, and not earlier."""
        one = stream(1)
        one.push(b"abc")
        one.will_end = True
        self.assertEqual([(frames.DATA, 1, b"ab")], self.take(one, 2))
        self.assertFalse(one.send_ended)
        self.assertEqual([(frames.DATA, 1, b"c"), (frames.FIN, 1, b"")], self.take(one, 2))
        self.assertTrue(one.send_ended)

    def test_full(self) -> None:
        """A stream is full above 64 KiB, and not below."""
        one = stream(1)
        one.push(bytes(FULL_ABOVE))
        self.assertFalse(one.full)
        one.push(b"x")
        self.assertTrue(one.full)

    def test_small_pieces_are_kept_joined(self) -> None:
        """Small received pieces do not cost many times their size."""
        one = stream(1)
        for number in range(10_000):
            one.keep(bytes([number % 256]))
        self.assertEqual(bytes(number % 256 for number in range(10_000)), b"".join(one.backlog))
        self.assertLessEqual(len(one.backlog), 10_000 // JOIN_BELOW + 1)
        one.keep(bytes(JOIN_BELOW + 1))
        self.assertEqual(JOIN_BELOW + 1, len(one.backlog[-1]))

    def test_small_pieces_wait_joined(self) -> None:
        """Small pieces to be sent do not either, and stay in order."""
        one = stream(1)
        pushed = b"".join(number.to_bytes(2, "big") for number in range(10_000))
        taken = bytearray()
        for number in range(10_000):
            one.push(number.to_bytes(2, "big"))
            if number % 1000 == 999:
                self.assertLessEqual(len(one.pending), one.pending_size // JOIN_BELOW + 2)
                # In the middle of a piece, to which more is joined.
                taken += b"".join(frame[2] for frame in self.take(one, 777))
        taken += b"".join(frame[2] for frame in self.take(one, len(pushed)))
        self.assertEqual(pushed, bytes(taken))


class FairQueueTests(SynchronousTestCase):
    """The order in which streams are served."""

    def setUp(self) -> None:
        """Start with an empty queue."""
        self.queue = FairQueue(16 * KIB)

    def bulk(self, number: int, size: int = KIB * KIB) -> Stream:
        """Add a stream with much data."""
        one = stream(number)
        one.push(bytes(size))
        self.queue.add(one)
        return one

    def fill(self, room: int) -> list[tuple[int, int]]:
        """Return the streams that were served, with their bytes, in order."""
        parts: list[Buffer] = []
        taken = self.queue.fill(parts, room)
        served = [(number, len(data)) for _, number, data in frames_in(b"".join(parts))]
        self.assertEqual(taken, sum(size for _, size in served))
        self.assertLessEqual(taken, room)
        return served

    @conformance("C-093")
    @given(
        st.integers(2, 8),
        st.lists(st.integers(1, 200 * KIB), min_size=1, max_size=20),
        st.integers(4 * KIB, 64 * KIB),
    )
    def test_bulk_shares_evenly(self, count: int, rooms: list[int], quantum: int) -> None:
        """At any time bulk streams have been served evenly, to within a quantum."""
        self.queue = FairQueue(16 * KIB)
        self.queue.quantum = quantum
        for number in range(count):
            self.bulk(number, 8 * KIB * KIB)
        served: Counter[int] = Counter(dict.fromkeys(range(count), 0))
        for room in rooms:
            for number, size in self.fill(room):
                served[number] += size
            self.assertLessEqual(max(served.values()) - min(served.values()), quantum)

    @conformance("C-094")
    @given(st.integers(1, 8), st.integers(1, 500 * KIB), st.integers(1, 4 * KIB))
    def test_small_is_served_next(self, count: int, before: int, size: int) -> None:
        """A stream that starts to send little is served before every bulk stream."""
        self.queue = FairQueue(16 * KIB)
        for number in range(count):
            self.bulk(number)
        while before > 0:
            before -= sum(size for _, size in self.fill(before))
        # Streams that are new themselves first use their quantum.
        for _ in range(count):
            self.fill(self.queue.quantum)
        small = stream(99)
        small.push(bytes(size))
        self.queue.add(small)
        self.assertEqual((99, size), self.fill(64 * KIB)[0])

    def test_small_again_and_again(self) -> None:
        """A stream that refills at once does not overtake the others forever."""
        self.bulk(1)
        self.fill(self.queue.quantum + 1)
        small = stream(2)
        served = []
        for _ in range(20):
            small.push(b"x" * 100)
            self.queue.add(small)
            served += self.fill(100)
        self.assertEqual({1, 2}, {number for number, _ in served})

    def test_alone(self) -> None:
        """A single stream is not limited to a quantum."""
        self.bulk(1)
        self.assertEqual([(1, 500 * KIB)], self.fill(500 * KIB))

    @conformance("C-135")
    def test_draining(self) -> None:
        """While draining, only streams with little data are served; the others keep their place."""
        self.bulk(1)
        resting = stream(4)
        resting.push(b"x")
        self.queue.add(resting)
        self.fill(self.queue.quantum + 2)
        self.assertTrue(resting.queued)
        self.queue.hold_bulk()
        resting.push(b"z")
        self.queue.add(resting)
        self.assertEqual([(4, 1)], self.fill(64 * KIB))
        self.bulk(2)
        self.assertEqual([], self.fill(64 * KIB))
        small = stream(3)
        small.push(b"x" * 100)
        self.queue.add(small)
        self.assertEqual([(3, 100)], self.fill(64 * KIB))
        self.assertEqual([], self.fill(64 * KIB))
        small.push(b"y" * 10)
        self.queue.add(small)
        self.assertEqual([(3, 10)], self.fill(64 * KIB))
        self.queue.is_draining = False
        self.assertEqual([1, 2, 1], [number for number, _ in self.fill(40 * KIB)])

    def test_turn_goes_on(self) -> None:
        """A quantum that was interrupted by the limit continues before the next stream."""
        self.bulk(1)
        self.bulk(2)
        self.assertEqual([(1, 10)], self.fill(10))
        rest = self.queue.quantum - 10
        self.assertEqual([(1, rest), (2, 5)], self.fill(rest + 5))

    def test_no_credit(self) -> None:
        """A stream without credit leaves the queue, and returns when it is added again."""
        one = stream(1, credit=10)
        one.push(bytes(100))
        self.queue.add(one)
        self.assertEqual([(1, 10)], self.fill(50))
        self.assertEqual([], self.fill(50))
        self.assertFalse(one.queued)
        one.send_limit = 15
        self.queue.add(one)
        self.queue.add(one)
        self.assertEqual([(1, 5)], self.fill(50))

    def test_old_and_empty(self) -> None:
        """An old stream without data leaves the queue."""
        one, _ = self.bulk(1, self.queue.quantum + 10), self.bulk(2)
        self.fill(2 * self.queue.quantum + 20)
        self.assertFalse(one.queued)

    def test_remove(self) -> None:
        """A closed stream is removed at once, whether new or old."""
        old, new = self.bulk(1, 100 * KIB), self.bulk(2)
        self.fill(self.queue.quantum)
        for one in (old, new, new):
            self.queue.remove(one)
            self.assertFalse(one.queued)
        self.assertEqual([], self.fill(100))

    def test_touched(self) -> None:
        """Streams that have room again or have ended are recorded."""
        one, two = self.bulk(1, 65 * KIB), self.bulk(2, 10)
        two.will_end = True
        self.fill(30 * KIB)
        self.assertEqual([two], self.queue.touched)
        self.fill(10 * KIB)
        self.assertEqual([two, one], self.queue.touched)
