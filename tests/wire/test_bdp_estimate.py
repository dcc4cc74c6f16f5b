"""The chunk size and the limit on unacknowledged data, derived from measurements of the path."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from yurttunnel.wire.bdp_estimate import (
    ACK_DELAY,
    ACK_EVERY,
    FIRST_RATE,
    INTERVAL,
    JITTER,
    MAX_CHUNK,
    MAX_QUANTUM,
    MAX_UNACKNOWLEDGED,
    MIN_CHUNK,
    MIN_QUANTUM,
    MIN_UNACKNOWLEDGED,
    QUANTUM_TIME,
    QUEUE_TIME,
    UNKNOWN_ROUND_TRIP,
    BdpEstimate,
)

KIB = 1024
MIB = KIB * KIB


class PaceTests(SynchronousTestCase):
    """A sender that gets acknowledgements at the times that the test sets."""

    def setUp(self) -> None:
        """Start at time 0."""
        self.bdp = BdpEstimate(0.0)
        self.now = 0.0
        self.position = 0

    def measure(self, rate: float, queue: float, round_trip: float | None = 0.06) -> None:
        """Process a measurement of ``rate`` in which bytes were queued for ``queue`` seconds."""
        if round_trip is None:
            in_time = UNKNOWN_ROUND_TRIP * (1 + JITTER) + QUEUE_TIME
        else:
            in_time = round_trip * (1 + JITTER) + QUEUE_TIME
        begin = self.position
        end = begin + int(rate * (in_time + queue) + ACK_EVERY)
        self.bdp.begin(begin, self.now)
        # The first acknowledgement starts the measurement, the last one ends it.
        self.now += in_time + INTERVAL + 0.001
        self.bdp.acknowledged(begin, end, self.now, round_trip)
        for elapsed in (in_time - 0.001, in_time + INTERVAL + 0.001):
            self.position = begin + int(rate * elapsed)
            self.bdp.acknowledged(self.position, end, self.now + elapsed, round_trip)
        self.now += elapsed

    def assert_near(self, expected: float, value: float) -> None:
        """Check that ``value`` is within 2 % of ``expected``."""
        self.assertLessEqual(abs(value - expected), expected / 50)

    def slow_down(self, rate: float, round_trip: float | None = 0.06) -> None:
        """Measure ``rate`` with queues until the estimate has converged."""
        for _ in range(30):
            self.measure(rate, 0.1, round_trip)

    @conformance("C-106")
    def test_before_the_first_measurement(self) -> None:
        """Before the first measurement the maximum limit applies, with small chunks."""
        self.assertEqual(MAX_UNACKNOWLEDGED, self.bdp.max_unacknowledged)
        self.assertEqual(int(2 * FIRST_RATE * QUANTUM_TIME), self.bdp.chunk)
        self.assertEqual(int(FIRST_RATE * QUANTUM_TIME), self.bdp.quantum)

    @conformance("C-106")
    def test_rate(self) -> None:
        """The limit is twice what a balanced path needs, plus one quantum."""
        for rate in (30e6, 50e6, 20e6):
            self.slow_down(rate)
            bound = 2 * (rate * 0.06 + ACK_EVERY) + rate * QUANTUM_TIME
            self.assert_near(bound, self.bdp.max_unacknowledged)

    @conformance("C-106")
    def test_round_trip(self) -> None:
        """A longer path has a higher limit; an unknown round trip counts as 0.1 s."""
        for round_trip, seconds in ((0.03, 0.065), (0.09, 0.185), (None, 0.205)):
            self.slow_down(20e6, round_trip)
            bound = 20e6 * seconds + 2 * ACK_EVERY
            self.assert_near(bound, self.bdp.max_unacknowledged)

    @conformance("C-106")
    def test_bounds(self) -> None:
        """The limit is 8 KiB to 16 MiB, however slow or fast the path is."""
        self.slow_down(200e6, 3.0)
        self.assertEqual(MAX_UNACKNOWLEDGED, self.bdp.max_unacknowledged)
        self.slow_down(1000, 0.5)
        self.assertEqual(MIN_UNACKNOWLEDGED, self.bdp.max_unacknowledged)

    def test_sizes(self) -> None:
        """Chunk and quantum are ten and five milliseconds of the rate, within their limits."""
        for rate, chunk, quantum in (
            (4e6, 40_000, 20_000),
            (100e6, MAX_CHUNK, MAX_QUANTUM),
            (1000, MIN_CHUNK, MIN_QUANTUM),
        ):
            self.slow_down(rate)
            self.assert_near(chunk, self.bdp.chunk)
            self.assert_near(quantum, self.bdp.quantum)

    def test_no_queue(self) -> None:
        """A measurement without a queue can raise the rate, but not lower it."""
        self.slow_down(10e6)
        kept, chunk = self.bdp.max_unacknowledged, self.bdp.chunk
        for rate, expected in ((1e6, chunk), (5e6, chunk), (12e6, 120_000)):
            self.measure(rate, -0.02)
            self.assert_near(expected, self.bdp.chunk)
        self.assertGreater(self.bdp.max_unacknowledged, kept)

    def test_short_queue(self) -> None:
        """On a short path a queue of more than 5 ms is detected in a longer measurement."""
        for queue, expected in (
            (0.004, MAX_UNACKNOWLEDGED),
            (0.006, 2 * ACK_EVERY + 100e6 * QUANTUM_TIME),
        ):
            for _ in range(5):
                self.measure(100e6, queue - QUEUE_TIME, 0.0)
            self.assert_near(expected, self.bdp.max_unacknowledged)

    def test_pause_of_the_peer(self) -> None:
        """One slow measurement at most halves the rate."""
        self.slow_down(16e6)
        self.measure(1e6, 1.0)
        self.assert_near(8e6 * 2 * QUANTUM_TIME, self.bdp.chunk)

    def test_little_acknowledged_late(self) -> None:
        """A delay by the peer's ACK timer alone does not count as a queue."""
        self.slow_down(16e6)
        for number in range(100):
            if number == 2:
                # The data in flight before has been processed.
                kept = self.bdp.max_unacknowledged
            end = self.position + 100
            self.bdp.acknowledged(self.position, end, self.now, 0.06)
            self.now += 0.06 + ACK_DELAY
            self.position = end
            self.bdp.acknowledged(end, end, self.now, 0.06)
            self.now += 0.1
        self.assertEqual(kept, self.bdp.max_unacknowledged)

    def test_little_in_a_queue(self) -> None:
        """A small amount of data that takes longer than that counts as queued."""
        self.slow_down(16e6)
        kept = self.bdp.max_unacknowledged
        for _ in range(20):
            end = self.position + 100 * KIB
            self.bdp.acknowledged(self.position, end, self.now, 0.06)
            for part in range(1, 11):
                self.now += 0.2
                self.bdp.acknowledged(self.position + part * 10 * KIB, end, self.now, 0.06)
            self.position = end
        self.assertLess(self.bdp.max_unacknowledged, kept)

    def test_pause_of_the_sender(self) -> None:
        """Time without data in flight does not affect the estimate."""
        self.slow_down(16e6)
        kept = self.bdp.max_unacknowledged
        end = self.position + 64 * KIB
        self.bdp.acknowledged(self.position, end, self.now + 1, 0.06)
        self.bdp.acknowledged(end, end, self.now + 2, 0.06)
        kept = self.bdp.max_unacknowledged
        self.bdp.acknowledged(end + 100, end + 100, self.now + 62, 0.06)
        self.assertEqual(kept, self.bdp.max_unacknowledged)

    def test_interval(self) -> None:
        """A measurement takes 1.25 round trips plus 20 ms."""
        bdp = self.bdp
        for step in range(1, 10):
            bdp.acknowledged(step * MIB, 20 * MIB, step * 0.01, 0.06)
            self.assertEqual(int(2 * FIRST_RATE * QUANTUM_TIME), bdp.chunk)
        bdp.acknowledged(10 * MIB, 20 * MIB, 0.0951, 0.06)
        self.assertEqual(MAX_CHUNK, bdp.chunk)

    def test_new_connection(self) -> None:
        """Time without a connection is not part of a measurement."""
        self.slow_down(16e6)
        kept = self.bdp.max_unacknowledged
        self.now = 100.0
        self.bdp.begin(self.position, self.now)
        self.bdp.acknowledged(self.position + 100, self.position + 100, self.now + 0.1, 0.06)
        self.assertEqual(kept, self.bdp.max_unacknowledged)
