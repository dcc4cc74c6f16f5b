"""The sending half of a session by itself: what goes first, and how much may be under way."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import REQUEST
from yurttunnel.wire import frames
from yurttunnel.wire.credit import MemoryBudget, ReceiveWindow
from yurttunnel.wire.outbox import MAX_CHUNK, MAX_CONTROL, MAX_KEPT, MIN_KEPT, Outbox
from yurttunnel.wire.scheduler import MAX_QUANTUM, MIN_QUANTUM
from yurttunnel.wire.stream import Stream, StreamState

KIB = 1024
MIB = KIB * KIB
PLENTY = 1 << 40


def with_data(outbox: Outbox, size: int) -> Stream:
    """Let a stream with ``size`` bytes to send take part."""
    window = ReceiveWindow(1, 0, 0.0)
    stream = Stream(1, StreamState.OPEN, REQUEST, window, PLENTY, 64 * KIB)
    stream.push(bytes(size))
    outbox.queue.add(stream)
    return stream


class OrderTests(SynchronousTestCase):
    """What goes first."""

    def setUp(self) -> None:
        """Begin with nothing to send."""
        self.outbox = Outbox(PLENTY, 0.0)

    @conformance("C-092")
    def test_control_credit_data(self) -> None:
        """Control frames go first, in their order, then credit, then data."""
        with_data(self.outbox, 3)
        self.outbox.put(b"one")
        self.outbox.put(b"two")
        self.assertEqual(6, self.outbox.control_size)
        expected = b"onetwocredit" + frames.frame(frames.DATA, 1, bytes(3))
        self.assertEqual(expected, self.outbox.next_chunk(100, [b"cre", b"dit"]))
        self.assertEqual((0, b""), (self.outbox.control_size, self.outbox.next_chunk(100, [])))

    def test_limit(self) -> None:
        """The limit and the peer's credit bound the payload, and control frames are not in it."""
        self.outbox.payload_limit = 25
        with_data(self.outbox, 100)
        self.outbox.put(b"x" * 50)
        self.assertEqual(50 + 9 + 10, len(self.outbox.next_chunk(10, [])))
        self.assertEqual(9 + 15, len(self.outbox.next_chunk(20, [])))
        self.assertEqual(25, self.outbox.payload_sent)
        self.assertEqual(b"", self.outbox.next_chunk(20, []))

    @conformance("C-112")
    def test_link_frames(self) -> None:
        """Of link frames the newest of each type is given, once, and they are not kept."""
        self.outbox.put_link(frames.PONG, b"old")
        self.outbox.put_link(frames.ACK, b"ack")
        self.outbox.put_link(frames.PONG, b"new")
        self.assertEqual(b"newack", self.outbox.take_link())
        self.assertEqual(b"", self.outbox.take_link())
        self.assertEqual(0, self.outbox.log.kept)

    @conformance("C-109")
    def test_link_frames_end_with_the_connection(self) -> None:
        """What was sent goes out again on a new connection; link frames do not."""
        self.outbox.put(b"kept")
        self.outbox.next_chunk(10, [])
        self.outbox.put_link(frames.PONG, b"pong")
        self.outbox.connected(1.0)
        self.assertEqual(b"", self.outbox.take_link())
        self.assertEqual(b"kept", self.outbox.log.next_again())


class BoundTests(SynchronousTestCase):
    """How much may be under way unacknowledged."""

    def setUp(self) -> None:
        """Begin at time 0."""
        self.outbox = Outbox(PLENTY, 0.0)
        self.now = 0.0

    def measure(self, rate: float, round_trip: float | None = 0.06) -> None:
        """Have a second's worth of ``rate`` sent and acknowledged in one second."""
        log = self.outbox.log
        log.append(bytes(int(rate)))
        self.now += 1
        self.outbox.acknowledged(log.end, self.now, round_trip)

    def under_way(self) -> int:
        """Send until no more data are given; have it acknowledged at once."""
        outbox = self.outbox
        with_data(outbox, 40 * MIB)
        while outbox.next_chunk(64 * KIB, []):
            pass
        kept = outbox.log.kept
        outbox.log.acknowledge(outbox.log.end)
        outbox.queue = type(outbox.queue)()
        return kept

    def assert_bound(self, bound: float) -> None:
        """Check that data stop at ``bound``, give or take a chunk."""
        self.assertTrue(bound <= self.under_way() < bound + 65 * KIB)

    @conformance("C-106")
    def test_before_the_first_measurement(self) -> None:
        """At first 1 MiB may be under way."""
        self.assert_bound(MIN_KEPT)

    @conformance("C-106")
    def test_rate(self) -> None:
        """Twice the round trip and 5 ms at the measured rate may be under way, faster or slower."""
        for rate in (50 * MIB, 100 * MIB, 30 * MIB):
            self.measure(rate)
            self.assert_bound(int(rate * 0.125))

    @conformance("C-106")
    def test_round_trip(self) -> None:
        """The longer the path the more may be under way; one that is not known counts as 0.1 s."""
        for round_trip, seconds in ((0.03, 0.065), (0.09, 0.185), (None, 0.205)):
            self.measure(50 * MIB, round_trip)
            self.assert_bound(int(50 * MIB * seconds))

    @conformance("C-106")
    def test_bounds(self) -> None:
        """However slow or fast the path, 1 MiB and 16 MiB are the bounds."""
        self.measure(200 * MIB, 3.0)
        self.assert_bound(MAX_KEPT)
        for rate, round_trip in ((0, 3.0), (1000, 0.5), (MIB, 0.0)):
            self.measure(rate, round_trip)
            self.assert_bound(MIN_KEPT)

    def test_interval(self) -> None:
        """Acknowledgements are added up until 50 ms have gone by."""
        outbox = self.outbox
        outbox.log.append(bytes(10 * MIB))
        for step in range(1, 6):
            self.assertEqual(MIN_KEPT, outbox._most_kept)
            outbox.acknowledged(step * 2 * MIB, step * 0.01, 0.02)
        self.assertAlmostEqual(200 * MIB * 0.045, outbox._most_kept, delta=10)

    def test_new_connection(self) -> None:
        """The time without a connection is no part of a measurement."""
        self.measure(50 * MIB)
        self.now = 100.0
        self.outbox.connected(self.now)
        self.measure(50 * MIB)
        self.assert_bound(int(50 * MIB * 0.125))

    def test_sizes(self) -> None:
        """Chunk and quantum are ten and five milliseconds of the rate, within their bounds."""
        for rate, chunk, quantum in (
            (4 * 10**6, 40_000, 20_000),
            (10**8, MAX_CHUNK, MAX_QUANTUM),
            (1000, 4 * MIN_QUANTUM, MIN_QUANTUM),
        ):
            self.measure(rate)
            self.assertEqual((chunk, quantum), (self.outbox.chunk, self.outbox.queue.quantum))

    @conformance("C-131")
    def test_full(self) -> None:
        """Control frames go on beyond the bound for data, to 16 MiB and 64 KiB."""
        outbox = self.outbox
        outbox.put(bytes(MAX_KEPT + MAX_CONTROL - 1))
        outbox.next_chunk(1, [])
        self.assertFalse(outbox.is_full)
        outbox.put(b"x")
        outbox.next_chunk(1, [])
        self.assertTrue(outbox.is_full)


class BudgetTests(SynchronousTestCase):
    """What sessions of a process keep together."""

    def test_used_up(self) -> None:
        """Without memory left one chunk at a time is under way; control frames still go."""
        process = MemoryBudget(100 * KIB)
        one, other = Outbox(PLENTY, 0.0, process), Outbox(PLENTY, 0.0, process)
        for outbox in (one, other):
            with_data(outbox, MIB)
        while one.next_chunk(64 * KIB, []):
            pass
        self.assertTrue(process.is_used_up)
        self.assertGreater(110 * KIB + 64 * KIB, process.used)
        self.assertNotEqual(b"", other.next_chunk(64 * KIB, []))
        self.assertEqual(b"", other.next_chunk(64 * KIB, []))
        other.put(b"control")
        self.assertEqual(b"control", other.next_chunk(64 * KIB, []))
        one.acknowledged(one.log.end, 1.0, None)
        other.acknowledged(other.log.end, 1.0, None)
        self.assertEqual(0, process.used)
        self.assertNotEqual(b"", one.next_chunk(64 * KIB, []))

    def test_pause(self) -> None:
        """A pause in what there is to send does not count as a slow path."""
        outbox = Outbox(PLENTY, 0.0)
        with_data(outbox, 64 * MIB)
        now = 0.0
        for _ in range(5):
            now += 0.05
            while outbox.next_chunk(256 * KIB, []):
                continue
            outbox.acknowledged(outbox.log.end, now, 0.1)
        chunk = outbox.chunk
        self.assertGreater(chunk, 64 * KIB)
        outbox.put(b"x")
        outbox.next_chunk(0, [])
        outbox.acknowledged(outbox.log.end, now + 60, 0.1)
        self.assertEqual(chunk, outbox.chunk)
