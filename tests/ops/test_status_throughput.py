"""How much sessions have carried in the last minutes."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.status_pages import Carrying
from yurttunnel.metrics import Durations
from yurttunnel.ops import slices
from yurttunnel.ops.status.session_rates import SessionRates
from yurttunnel.ops.status.throughput import INTERVAL, MAX_KEPT, Throughput
from yurttunnel.tunnel.statistics import TunnelCounters


class ThroughputTests(SynchronousTestCase):
    """Samples of sessions, by a clock of our own."""

    def setUp(self) -> None:
        """Begin with no session."""
        self.clock = Clock()
        self.counters = TunnelCounters(bytes_received=7, bytes_sent=7)
        self.sessions: list[Carrying] = []
        self.requests = 7
        self.answers = Durations((0.1, 1.0))
        self.rates = SessionRates(self.clock, self.counters, lambda: self.sessions)
        self.throughput = Throughput(
            self.clock,
            {"requests": lambda: self.requests},
            {"answers": self.answers},
            self.rates.sample,
        )
        for service in (self.rates, self.throughput):
            service.startService()
            self.addCleanup(service.stopService)

    def test_rates_of_a_session(self) -> None:
        """From the second sample on there is what was carried since the one before, each second."""
        self.sessions = [Carrying(1000, 0)]
        self.clock.advance(INTERVAL)
        self.assertEqual((0.0, 0.0), self.rates.of(b"a").newest())
        self.sessions = [Carrying(1500, 50)]
        self.clock.advance(INTERVAL)
        rates = self.rates.of(b"a")
        self.assertEqual((500 / INTERVAL, 50 / INTERVAL), rates.newest())
        self.assertEqual([550 / INTERVAL], rates.both())

    def test_rates_of_all(self) -> None:
        """The sum comes from the counters, so that what ended sessions have carried is in it."""
        self.counters.bytes_received += 5000
        self.clock.advance(INTERVAL)
        self.assertEqual((5000 / INTERVAL, 0.0), self.rates.total().newest())

    def test_round_trips(self) -> None:
        """Each sample has the round trip that was measured last."""
        self.sessions = [Carrying()]
        self.clock.pump([INTERVAL] * (MAX_KEPT + 5))
        self.assertEqual([0.25] * MAX_KEPT, list(self.rates.round_trips(b"a")))
        self.assertEqual((), self.rates.round_trips(b"b"))

    def test_how_often(self) -> None:
        """What only grows is shown by how often it does, each second."""
        self.requests = 17
        self.clock.advance(INTERVAL)
        self.assertEqual([10 / INTERVAL], list(self.throughput.rates("requests")))
        self.clock.pump([INTERVAL] * (2 * MAX_KEPT))
        self.assertEqual([0.0] * MAX_KEPT, list(self.throughput.rates("requests")))

    def test_how_long(self) -> None:
        """A part of what was done in the last minutes took no longer than so; earlier is past."""
        self.assertIsNone(self.throughput.duration_quantile("answers", 0.5))
        self.answers.observe(20.0)
        self.clock.pump([INTERVAL] * (2 * MAX_KEPT))
        self.assertIsNone(self.throughput.duration_quantile("answers", 0.5))
        for _ in range(10):
            self.answers.observe(0.05)
        self.assertEqual(0.05, self.throughput.duration_quantile("answers", 0.5))
        for _ in range(10):
            self.answers.observe(0.5)
        self.assertEqual(0.55, self.throughput.duration_quantile("answers", 0.75))
        self.answers.observe(20.0)
        self.assertEqual(
            1.0, self.throughput.duration_quantile("answers", 1.0), "no longer than it can tell"
        )

    def test_it_is_bounded(self) -> None:
        """Old samples go, and so do sessions that have ended."""
        self.sessions = [Carrying()]
        self.clock.pump([INTERVAL] * (2 * MAX_KEPT))
        self.assertEqual(MAX_KEPT, len(self.rates.total().received))
        self.assertEqual(MAX_KEPT, len(self.rates.of(b"a").received))
        self.sessions = []
        self.clock.advance(INTERVAL)
        self.assertEqual([], self.rates.of(b"a").both())

    def test_idle_sessions_share_their_samples(self) -> None:
        """Thousands of sessions that carry nothing have no number each for each sample."""
        self.sessions = [Carrying()]
        self.clock.pump([INTERVAL] * 4)
        rates = self.rates.of(b"a")
        self.assertEqual(1, len({id(rate) for rate in (*rates.received, *rates.sent)}))

    def test_a_late_sample(self) -> None:
        """A reactor that was held up makes no rate seem higher than it was."""
        self.counters.bytes_received += 6000
        self.clock.advance(3 * INTERVAL)
        self.assertEqual((6000 / (3 * INTERVAL), 0.0), self.rates.total().newest())

    def test_many_sessions(self) -> None:
        """The reactor turns while they are measured."""
        self.patch(slices, "SLICE_SECONDS", 0.0)
        turns = []
        call_later = self.clock.callLater
        self.patch(
            self.clock,
            "callLater",
            lambda seconds, *call: turns.append(seconds) or call_later(seconds, *call),
        )
        self.sessions = [Carrying(session_id=b"%d" % number) for number in range(5000)]
        self.clock.pump([INTERVAL] * 2)
        self.assertEqual([0.0], list(self.rates.of(b"4999").received))
        self.assertGreater(turns.count(0), 2 * 5000 / slices.ITEMS_PER_PIECE)

    def test_the_end(self) -> None:
        """Nothing is left to be called after the end, also when sessions are being measured."""
        self.sessions = [Carrying(session_id=b"%d" % number) for number in range(100)]
        self.clock.callLater(INTERVAL, self.throughput.stopService)
        self.clock.advance(INTERVAL)
        self.assertEqual([], self.clock.getDelayedCalls())
