"""Timers go on as ever when somebody sets the machine's clock, and dates follow it."""

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
        """Have a reactor that is nobody else's: the one that runs the tests stays as it is."""
        self.reactor = MemoryReactorClock()
        make_steady(self.reactor)

    def test_seconds(self) -> None:
        """They are those of a clock that never jumps."""
        before = time.monotonic()
        self.assertTrue(before <= self.reactor.seconds() <= time.monotonic())

    def test_timers(self) -> None:
        """A reactor of Twisted has its timers follow them."""
        reactor = SelectReactor()
        self.addCleanup(self.close, reactor)
        make_steady(reactor)
        call = reactor.callLater(10, self.fail)
        self.assertLess(abs(call.getTime() - time.monotonic() - 10), 5)
        self.assertTrue(5 < reactor.timeout() <= 10)

    def close(self, reactor: SelectReactor) -> None:
        """Close what the reactor has opened for itself."""
        for reader in reactor.removeAll():
            reader.connectionLost(None)
        reactor.waker.connectionLost(None)

    def test_time_of_day(self) -> None:
        """It is asked for each time, whatever it has become."""
        self.assertLess(abs(time_of_day(self.reactor) - time.time()), 60)
        self.assertLess(abs(utc_now(self.reactor).timestamp() - time.time()), 60)
        self.reactor.time_of_day = lambda: HOUR
        self.assertEqual(time_of_day(self.reactor), HOUR)

    def test_behind_other_transports(self) -> None:
        """Who is given the reactor with transports of its own has both clocks."""
        for name in ("direct", "twisted"):
            reactor = with_transports(self.reactor, name, lambda socket: None)
            self.assertLess(abs(reactor.seconds() - time.monotonic()), 60)
            self.assertLess(abs(time_of_day(reactor) - time.time()), 60)


class OneClockTests(SynchronousTestCase):
    """A clock that knows of no other one."""

    def test_its_seconds_are_the_time_of_day(self) -> None:
        """So a test may say what day it is."""
        clock = Clock()
        clock.advance(HOUR)
        self.assertEqual(time_of_day(clock), HOUR)
        self.assertEqual(utc_now(clock), formatting.at(HOUR))
