"""The round-trip time, measured by PINGs and probes."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import frames_in
from yurttunnel.wire.round_trip import PROBE_AFTER, PROBE_AGAIN, PROBE_ROUND_TRIPS, Probe, RoundTrip


class RoundTripTests(SynchronousTestCase):
    """PINGs and their answers."""

    def setUp(self) -> None:
        """Start with a connection."""
        self.measured = RoundTrip()
        self.measured.connected(0.0)

    def sample(self, at: float, seconds: float) -> Probe:
        """Send a PING that is answered after ``seconds``; return the probe state that it ends."""
        [(_, _, payload)] = frames_in(self.measured.ping(at))
        return self.measured.pong(int.from_bytes(payload, "big"), at + seconds)

    def test_shortest_of_eight(self) -> None:
        """The round trip is the shortest of the last eight samples."""
        seen = []
        for number, seconds in enumerate([0.5, 0.2] + [0.4] * 7):
            self.sample(number * 10.0, seconds)
            seen.append(round(self.measured.seconds or 0, 6))
        self.assertEqual([0.5] + [0.2] * 8, seen)
        self.sample(200.0, 0.3)
        self.assertAlmostEqual(0.3, self.measured.seconds or 0)

    def test_a_new_connection(self) -> None:
        """A new connection may use another path: its first answer replaces all previous samples."""
        self.sample(0.0, 0.01)
        self.measured.connected(10.0)
        self.assertEqual(0.01, self.measured.seconds)
        self.sample(10.0, 0.5)
        self.assertEqual(0.5, self.measured.seconds)

    @conformance("C-117")
    def test_other_pongs(self) -> None:
        """A PONG that does not answer the last PING, or is repeated, is ignored."""
        measured = self.measured
        measured.ping(0.0)
        measured.ping(10.0)
        measured.pong(1, 11.0)
        measured.pong(3, 11.0)
        self.assertIsNone(measured.seconds)
        measured.pong(2, 12.0)
        measured.pong(2, 15.0)
        self.assertEqual(2.0, measured.seconds)
        sent = [number for number in range(-1, 5) if measured.has_sent(number)]
        self.assertEqual([1, 2], sent)

    def test_probe(self) -> None:
        """The second PING of a probe replaces the samples; the first measures the draining."""
        self.sample(0.0, 0.01)
        self.measured.begin(20.0)
        self.assertEqual(0.0, self.measured.age(30.0))
        self.assertEqual(Probe.DRAINING, self.sample(20.0, 1.5))
        self.assertEqual((0.01, 1.5), (self.measured.seconds, self.measured.draining))
        self.assertEqual(Probe.MEASURING, self.sample(21.5, 0.5))
        self.assertEqual((0.5, 1.5), (self.measured.seconds, self.measured.draining))
        self.assertEqual(Probe.ENDED, self.sample(24.0, 0.75))
        self.assertEqual(0.5, self.measured.seconds)
        self.assertEqual(5.0, self.measured.age(25.0))

    def test_probe_without_result(self) -> None:
        """An aborted probe changes nothing, and a probe ends with its connection."""
        for end, seconds in (
            (self.measured.abort_probe, 0.01),
            (lambda: self.measured.connected(8.0), 1.0),
        ):
            self.sample(0.0, 0.01)
            self.measured.begin(5.0)
            self.sample(5.0, 1.0)
            end()
            self.assertEqual(Probe.ENDED, self.sample(7.0, 1.0))
            self.assertAlmostEqual(seconds, self.measured.seconds or 0.0)

    def test_age(self) -> None:
        """The next probe is due later if the round trip is long."""
        self.assertEqual(PROBE_AFTER, self.measured.max_probe_age)
        self.sample(0.0, 2.0)
        self.assertEqual(2.0 * PROBE_ROUND_TRIPS, self.measured.max_probe_age)
        self.measured.connected(4.0)
        self.assertEqual(PROBE_AGAIN + 1.0, self.measured.age(5.0))
