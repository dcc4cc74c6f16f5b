"""Reactor lag: how late timers are."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.lag import ReactorLag


class ReactorLagTests(SynchronousTestCase):
    """The measured lag while the reactor is on time, late, and on time again."""

    def setUp(self) -> None:
        """Start the measurement."""
        self.clock = Clock()
        self.lag = ReactorLag(self.clock)
        self.lag.startService()

    def test_on_time(self) -> None:
        """A reactor that is on time has no lag."""
        self.clock.pump([1.0] * 5)
        self.assertEqual(0.0, self.lag.worst())

    def test_before_the_first_measurement(self) -> None:
        """Before the first measurement the lag is 0."""
        self.assertEqual(0.0, self.lag.worst())

    def test_stall(self) -> None:
        """A stall is reported for a minute, by the delay of the timer."""
        self.clock.advance(1.5)
        self.assertEqual(0.5, self.lag.worst())
        self.clock.pump([1.0] * 59)
        self.assertEqual(0.5, self.lag.worst())
        self.clock.advance(1.0)
        self.assertEqual(0.0, self.lag.worst())

    def test_stop(self) -> None:
        """A stopped measurement leaves no timer behind."""
        self.lag.stopService()
        self.assertEqual([], self.clock.getDelayedCalls())
