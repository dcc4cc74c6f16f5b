"""The recent throughput of sessions."""

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
    """Samples of sessions, with a fake clock."""

    def setUp(self) -> None:
        """Make samplers without sessions."""
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
        """From the second sample on a session has its rates in bytes per second."""
        self.sessions = [Carrying(1000, 0)]
        self.clock.advance(INTERVAL)
        self.assertEqual((0.0, 0.0), self.rates.of(b"a").newest())
        self.sessions = [Carrying(1500, 50)]
        self.clock.advance(INTERVAL)
        rates = self.rates.of(b"a")
        self.assertEqual((500 / INTERVAL, 50 / INTERVAL), rates.newest())
        self.assertEqual([550 / INTERVAL], rates.both())

    def test_rates_of_all(self) -> None:
        """The total comes from the counters, so it includes sessions that have ended."""
        self.counters.bytes_received += 5000
        self.clock.advance(INTERVAL)
        self.assertEqual((5000 / INTERVAL, 0.0), self.rates.total().newest())

    def test_round_trips(self) -> None:
        """Each sample has the latest measured round trip."""
        self.sessions = [Carrying()]
        self.clock.pump([INTERVAL] * (MAX_KEPT + 5))
        self.assertEqual([0.25] * MAX_KEPT, list(self.rates.round_trips(b"a")))
        self.assertEqual((), self.rates.round_trips(b"b"))

    def test_how_often(self) -> None:
        """A counter is shown as its rate per second."""
        self.requests = 17
        self.clock.advance(INTERVAL)
        self.assertEqual([10 / INTERVAL], list(self.throughput.rates("requests")))
        self.clock.pump([INTERVAL] * (2 * MAX_KEPT))
        self.assertEqual([0.0] * MAX_KEPT, list(self.throughput.rates("requests")))

    def test_how_long(self) -> None:
        """Quantiles cover the durations of the last minutes, up to the highest bucket."""
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
        """Old samples and ended sessions are dropped."""
        self.sessions = [Carrying()]
        self.clock.pump([INTERVAL] * (2 * MAX_KEPT))
        self.assertEqual(MAX_KEPT, len(self.rates.total().received))
        self.assertEqual(MAX_KEPT, len(self.rates.of(b"a").received))
        self.sessions = []
        self.clock.advance(INTERVAL)
        self.assertEqual([], self.rates.of(b"a").both())

    def test_idle_sessions_share_their_samples(self) -> None:
        """Idle sessions share one zero for all samples, which saves memory."""
        self.sessions = [Carrying()]
        self.clock.pump([INTERVAL] * 4)
        rates = self.rates.of(b"a")
        self.assertEqual(1, len({id(rate) for rate in (*rates.received, *rates.sent)}))

    def test_a_late_sample(self) -> None:
        """A rate is divided by the real interval, even if a stalled reactor delays the sample."""
        self.counters.bytes_received += 6000
        self.clock.advance(3 * INTERVAL)
        self.assertEqual((6000 / (3 * INTERVAL), 0.0), self.rates.total().newest())

    def test_many_sessions(self) -> None:
        """Sampling many sessions does not block the reactor."""
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
        """Stopping leaves no timer, also in the middle of a sample."""
        self.sessions = [Carrying(session_id=b"%d" % number) for number in range(100)]
        self.clock.callLater(INTERVAL, self.throughput.stopService)
        self.clock.advance(INTERVAL)
        self.assertEqual([], self.clock.getDelayedCalls())
