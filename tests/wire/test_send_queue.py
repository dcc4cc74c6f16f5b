"""The sending half of a session: the order of frames, and the limit of data in flight."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import REQUEST, frames_in
from yurttunnel.wire import frames
from yurttunnel.wire.bdp_estimate import ACK_DELAY, MAX_UNACKNOWLEDGED, QUANTUM_TIME
from yurttunnel.wire.credit import MemoryBudget, ReceiveWindow
from yurttunnel.wire.send_queue import MAX_CONTROL, SendQueue
from yurttunnel.wire.stream import Stream, StreamState

KIB = 1024
MIB = KIB * KIB
PLENTY = 1 << 40


def with_data(send_queue: SendQueue, size: int) -> Stream:
    """Add a stream with ``size`` bytes to send."""
    window = ReceiveWindow(1, 0, 0.0)
    stream = Stream(1, StreamState.OPEN, REQUEST, window, PLENTY, 64 * KIB)
    stream.push(bytes(size))
    send_queue.queue.add(stream)
    return stream


class OrderTests(SynchronousTestCase):
    """The order of frames."""

    def setUp(self) -> None:
        """Start with an empty queue."""
        self.send_queue = SendQueue(PLENTY, 0.0)

    @conformance("C-092")
    def test_control_before_data(self) -> None:
        """Control frames are sent first, in order, then data."""
        with_data(self.send_queue, 3)
        self.send_queue.put(b"one")
        self.send_queue.put(b"two")
        self.assertEqual(6, self.send_queue.control_size)
        expected = b"onetwo" + frames.frame(frames.DATA, 1, bytes(3))
        self.assertEqual(expected, self.send_queue.next_chunk(100))
        self.assertEqual((0, b""), (self.send_queue.control_size, self.send_queue.next_chunk(100)))

    def test_limit(self) -> None:
        """The limit and the peer's credit apply to the payload, but not to control frames."""
        self.send_queue.payload_limit = 25
        with_data(self.send_queue, 100)
        self.send_queue.put(b"x" * 50)
        self.assertEqual(50 + 9 + 10, len(self.send_queue.next_chunk(10)))
        self.assertEqual(9 + 15, len(self.send_queue.next_chunk(20)))
        self.assertEqual(25, self.send_queue.payload_sent)
        self.assertEqual(b"", self.send_queue.next_chunk(20))
        self.send_queue.payload_limit = 26
        self.assertEqual(9 + 1, len(self.send_queue.next_chunk(20)))

    @conformance("C-112")
    def test_link_frames(self) -> None:
        """Only the newest link frame of each type is returned, once; none is kept for later."""
        self.send_queue.put_link(frames.PONG, b"old")
        self.send_queue.put_link(frames.ACK, b"ack")
        self.send_queue.put_link(frames.PONG, b"new")
        self.assertEqual(b"newack", self.send_queue.take_link())
        self.assertEqual(b"", self.send_queue.take_link())
        self.assertEqual(0, self.send_queue.log.size)

    @conformance("C-109")
    def test_link_frames_end_with_the_connection(self) -> None:
        """Sent data is retransmitted on a new connection; link frames are not."""
        self.send_queue.put(b"kept")
        self.send_queue.next_chunk(10)
        self.send_queue.put_link(frames.PONG, b"pong")
        self.send_queue.connected(1.0)
        self.assertEqual(b"", self.send_queue.take_link())
        self.assertEqual(b"kept", self.send_queue.log.next_retransmission())


class BoundTests(SynchronousTestCase):
    """The limit of unacknowledged data."""

    def setUp(self) -> None:
        """Start at time 0."""
        self.send_queue = SendQueue(PLENTY, 0.0)

    @conformance("C-106")
    def test_pace(self) -> None:
        """Data stops at the limit, to within a chunk, and continues with acknowledgements."""
        send_queue = self.send_queue
        with_data(send_queue, 40 * MIB)
        for most in (MAX_UNACKNOWLEDGED, MIB):
            send_queue.bdp.max_unacknowledged = most
            while send_queue.next_chunk(64 * KIB):
                continue
            self.assertTrue(most <= send_queue.log.size < most + 65 * KIB)
            send_queue.log.acknowledge(send_queue.log.end)

    def test_measurement(self) -> None:
        """Acknowledgements determine the limit; time without a connection is not measured."""
        send_queue = self.send_queue
        with_data(send_queue, 40 * MIB)
        while send_queue.next_chunk(64 * KIB):
            continue
        send_queue.connected(100.0)
        self.assertTrue(send_queue.acknowledged(MIB, 101.0))
        self.assertFalse(send_queue.acknowledged(MIB, 101.0))
        self.assertGreater(send_queue.bdp.max_unacknowledged, 8 * MIB)
        send_queue.acknowledged(2 * MIB, 102.0)
        self.assertLess(send_queue.bdp.max_unacknowledged, MIB)
        self.assertEqual(send_queue.bdp.quantum, send_queue.queue.quantum)

    @conformance("C-131")
    def test_full(self) -> None:
        """Control frames continue above the limit for data, to 16 MiB and 64 KiB."""
        send_queue = self.send_queue
        send_queue.put(bytes(MAX_UNACKNOWLEDGED + MAX_CONTROL - 1))
        send_queue.next_chunk(1)
        self.assertFalse(send_queue.is_full)
        send_queue.put(b"x")
        send_queue.next_chunk(1)
        self.assertTrue(send_queue.is_full)


class ProbeTests(SynchronousTestCase):
    """Bulk data is paused for a round trip, to measure the path without a queue."""

    def setUp(self) -> None:
        """Start with bulk data on a path of 60 ms, and 3 MiB in flight that are queued."""
        self.send_queue = SendQueue(PLENTY, 0.0)
        self.answer(0.0, 0.06)
        with_data(self.send_queue, 40 * MIB)
        while self.send_queue.log.size < 4 * MIB:
            self.send_queue.next_chunk(64 * KIB)
        self.send_queue.acknowledged(MIB // 2, 1.0)
        self.send_queue.acknowledged(MIB, 2.0)

    def answer(self, now: float, seconds: float) -> None:
        """Send a PING and process its PONG."""
        self.send_queue.ping(now)
        self.pong(now + seconds)

    def pong(self, now: float) -> None:
        """Process the PONG for the queued PING."""
        [(_, _, payload)] = frames_in(self.send_queue.take_link())
        self.send_queue.pong(int.from_bytes(payload, "big"), now)

    @conformance("C-135")
    def test_fallen_rate(self) -> None:
        """A path that has become slow is probed: data waits, and resumes after a second PING."""
        send_queue = self.send_queue
        self.assertTrue(send_queue.is_probe_due(2.0))
        in_flight = send_queue.log.end - MIB
        send_queue.ping(2.0)
        self.assertFalse(self.goes_on(10.0))
        self.pong(10.0)
        self.assertTrue(self.goes_on(10.0))
        self.pong(10.1)
        self.assertAlmostEqual(0.1, send_queue.round_trip.seconds or 0.0)
        # The data that arrives in a round trip, and until the peer acknowledges.
        rate = in_flight / 8.0
        expected = rate * (2 * (0.1 + ACK_DELAY) + QUANTUM_TIME)
        self.assertLess(abs(send_queue.bdp.max_unacknowledged / expected - 1), 0.01)
        self.assertFalse(send_queue.is_probe_due(60.0))

    def test_longer_path(self) -> None:
        """On a path that has only become longer the limit stays about the same."""
        send_queue = self.send_queue
        most = send_queue.bdp.max_unacknowledged
        send_queue.ping(2.0)
        self.pong(2.6)
        self.pong(3.2)
        self.assertAlmostEqual(0.6, send_queue.round_trip.seconds or 0.0)
        self.assertLessEqual(most, send_queue.bdp.max_unacknowledged)
        self.assertLess(send_queue.bdp.max_unacknowledged, 2 * most)

    def test_nothing_new(self) -> None:
        """Without a queue, and with the same round trip, nothing changes."""
        send_queue = self.send_queue
        most = send_queue.bdp.max_unacknowledged
        send_queue.ping(2.0)
        self.pong(2.06)
        self.pong(2.12)
        self.assertEqual(most, send_queue.bdp.max_unacknowledged)

    def test_measurements_during_a_probe(self) -> None:
        """Acknowledgements do not affect the rate while data is paused."""
        send_queue = self.send_queue
        most = send_queue.bdp.max_unacknowledged
        send_queue.ping(2.0)
        for number in range(1, 30):
            send_queue.acknowledged(MIB + number * 1000, 2.0 + number)
        self.assertEqual(most, send_queue.bdp.max_unacknowledged)

    @conformance("C-135")
    def test_no_answer(self) -> None:
        """An unanswered probe is aborted at the next PING, and not repeated at once."""
        send_queue = self.send_queue
        send_queue.ping(2.0)
        send_queue.abort_probe()
        send_queue.ping(4.5)
        self.assertTrue(self.goes_on(5.0))

    def test_new_connection(self) -> None:
        """A probe ends with its connection, and retransmission starts no other."""
        send_queue = self.send_queue
        send_queue.ping(2.0)
        send_queue.connected(3.0)
        self.assertTrue(send_queue.log.to_retransmit)
        send_queue.ping(30.0)
        while send_queue.log.next_retransmission():
            continue
        self.assertTrue(self.goes_on(30.0))

    def test_little_in_flight(self) -> None:
        """Without bulk data there is no probe, whatever happened before."""
        send_queue = self.send_queue
        send_queue.acknowledged(send_queue.log.end, 3.0)
        most = send_queue.bdp.max_unacknowledged
        send_queue.ping(60.0)
        self.pong(61.0)
        self.assertEqual({}, send_queue.link)
        self.assertEqual(most, send_queue.bdp.max_unacknowledged)

    def test_first_measurement_after_a_probe(self) -> None:
        """Data that arrived before the end of a probe does not raise the rate."""
        send_queue = self.send_queue
        send_queue.ping(2.0)
        self.pong(10.0)
        self.pong(10.1)
        most = send_queue.bdp.max_unacknowledged
        send_queue.acknowledged(3 * MIB, 10.15)
        send_queue.acknowledged(3 * MIB + 10, 11.0)
        self.assertLessEqual(send_queue.bdp.max_unacknowledged, most)

    def goes_on(self, now: float) -> bool:
        """Return whether data is sent once nothing is in flight any more."""
        self.send_queue.acknowledged(self.send_queue.log.end, now)
        return bool(self.send_queue.next_chunk(64 * KIB))


class BudgetTests(SynchronousTestCase):
    """The shared memory budget of a process's sessions."""

    def test_used_up(self) -> None:
        """With 7/8 used, one chunk at a time is in flight; control frames are still sent."""
        process = MemoryBudget(1024 * KIB)
        one, other = SendQueue(PLENTY, 0.0, process), SendQueue(PLENTY, 0.0, process)
        for send_queue in (one, other):
            with_data(send_queue, MIB)
        while one.next_chunk(64 * KIB):
            pass
        self.assertTrue(process.is_short)
        self.assertTrue(7 / 8 * process.limit <= process.used < process.limit - 63 * KIB)
        self.assertNotEqual(b"", other.next_chunk(64 * KIB))
        self.assertEqual(b"", other.next_chunk(64 * KIB))
        other.put(b"control")
        self.assertEqual(b"control", other.next_chunk(64 * KIB))
        one.acknowledged(one.log.end, 1.0)
        other.acknowledged(other.log.end, 1.0)
        self.assertEqual(0, process.used)
        self.assertNotEqual(b"", one.next_chunk(64 * KIB))

    @conformance("C-131")
    def test_control_frames_when_used_up(self) -> None:
        """Control frames stop at a chunk and 64 KiB, until there is room or an acknowledgement."""
        process = MemoryBudget(1024 * KIB)
        send_queue = SendQueue(PLENTY, 0.0, process)
        process.charge(900 * KIB)
        most = 192 * KIB
        for part in (1, 2):
            send_queue.put(bytes(most - 1))
            self.assertEqual(most - 1, len(send_queue.next_chunk(1)))
            self.assertFalse(send_queue.is_full)
            send_queue.put(b"x")
            self.assertEqual(b"x", send_queue.next_chunk(1))
            self.assertTrue(send_queue.is_full)
            send_queue.put(b"y")
            self.assertEqual(b"", send_queue.next_chunk(1))
            send_queue.acknowledged(send_queue.log.end, float(part))
            self.assertEqual(b"y", send_queue.next_chunk(1))
            send_queue.acknowledged(send_queue.log.end, float(part))
        send_queue.put(bytes(most))
        send_queue.next_chunk(1)
        self.assertTrue(send_queue.is_full)
        process.release(900 * KIB)
        send_queue.put(b"z")
        self.assertEqual(b"z", send_queue.next_chunk(1))
