"""Timers are independent of changes to the system clock; dates follow it."""

from __future__ import annotations

import time

from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.clocks import make_steady, time_of_day, utc_now
from yurttunnel.ops.status import formatting
from yurttunnel.tunnel.direct.reactor import with_transports

HOUR = 3600.0


class SteadyTests(SynchronousTestCase):
    """:func:`make_steady`."""

    def setUp(self) -> None:
        """Make a reactor of its own, so that the reactor that runs the tests stays unchanged."""
        self.reactor = MemoryReactorClock()
        make_steady(self.reactor)

    def test_seconds(self) -> None:
        """``seconds`` returns monotonic time."""
        before = time.monotonic()
        self.assertTrue(before <= self.reactor.seconds() <= time.monotonic())

    def test_timers(self) -> None:
        """The timers of a Twisted reactor use monotonic time."""
        reactor = SelectReactor()
        self.addCleanup(self.close, reactor)
        make_steady(reactor)
        call = reactor.callLater(10, self.fail)
        self.assertLess(abs(call.getTime() - time.monotonic() - 10), 5)
        self.assertTrue(5 < reactor.timeout() <= 10)

    def close(self, reactor: SelectReactor) -> None:
        """Close the descriptors that the reactor has opened."""
        for reader in reactor.removeAll():
            reader.connectionLost(None)
        reactor.waker.connectionLost(None)

    def test_time_of_day(self) -> None:
        """The time of day is read at each call, so that it follows changes."""
        self.assertLess(abs(time_of_day(self.reactor) - time.time()), 60)
        self.assertLess(abs(utc_now(self.reactor).timestamp() - time.time()), 60)
        self.reactor.time_of_day = lambda: HOUR
        self.assertEqual(time_of_day(self.reactor), HOUR)

    def test_wrapped_transports(self) -> None:
        """A reactor that is wrapped by either kind of transports keeps both clocks."""
        for name in ("direct", "twisted"):
            reactor = with_transports(self.reactor, name, lambda socket: None)
            self.assertLess(abs(reactor.seconds() - time.monotonic()), 60)
            self.assertLess(abs(time_of_day(reactor) - time.time()), 60)


class SingleClockTests(SynchronousTestCase):
    """A clock without a separate time of day."""

    def test_its_seconds_are_the_time_of_day(self) -> None:
        """Such a clock's seconds are the time of day, so that a test can set the date."""
        clock = Clock()
        clock.advance(HOUR)
        self.assertEqual(time_of_day(clock), HOUR)
        self.assertEqual(utc_now(clock), formatting.at(HOUR))
