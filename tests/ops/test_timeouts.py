"""Waiting for many ends with one limit."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.timeouts import all_fired_within


class WithinTests(SynchronousTestCase):
    """What ``all_fired_within`` answers, and when."""

    def setUp(self) -> None:
        """Provide a clock."""
        self.clock = Clock()

    def wait(self, *deferreds: Deferred[Any]) -> Deferred[bool]:
        """Wait ten seconds at most."""
        return Deferred.fromCoroutine(all_fired_within(self.clock, 10, deferreds))

    def test_nothing_to_wait_for(self) -> None:
        """Without anything to wait for the answer is yes, at once and without a timer."""
        self.assertTrue(self.successResultOf(self.wait()))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_ended_already(self) -> None:
        """What has ended before is not waited for."""
        self.assertTrue(self.successResultOf(self.wait(succeed(1), succeed(2))))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_all_end_in_time(self) -> None:
        """The answer is yes when the last one has ended, and the timer is gone."""
        first, second = Deferred[None](), Deferred[None]()
        waiting = self.wait(first, second)
        second.callback(None)
        self.clock.advance(9.9)
        self.assertNoResult(waiting)
        first.callback(None)
        # Whoever ended it is not interrupted by what follows from it.
        self.assertNoResult(waiting)
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_one_is_late(self) -> None:
        """The answer is no when time is over; the late one is not canceled and may end later."""
        canceled: list[object] = []
        late = Deferred[None](canceled.append)
        waiting = self.wait(late, succeed(None))
        self.clock.advance(10)
        self.assertFalse(self.successResultOf(waiting))
        self.assertEqual([], canceled)
        late.callback(None)

    def test_failure_is_an_end(self) -> None:
        """A part that fails has ended, and the failure is logged."""
        part = Deferred[None]()
        waiting = self.wait(part)
        part.errback(ZeroDivisionError())
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_late_failure_is_logged(self) -> None:
        """A part that fails after the time is over is logged, too, and not left unhandled."""
        part = Deferred[None]()
        waiting = self.wait(part)
        self.clock.advance(10)
        self.assertFalse(self.successResultOf(waiting))
        part.errback(ZeroDivisionError())
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_canceled_part_is_not_logged(self) -> None:
        """A part that is canceled has ended without anything to report."""
        part = Deferred[None]()
        waiting = self.wait(part)
        part.cancel()
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual([], self.flushLoggedErrors())

    def test_canceled_wait(self) -> None:
        """Canceling the wait ends it without a timer left; what was waited for goes on."""
        part = Deferred[None]()
        waiting = self.wait(part)
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual([], self.clock.getDelayedCalls())
        part.callback(None)

    def test_result_is_passed_on(self) -> None:
        """Whoever else uses a Deferred that is waited for still gets its result."""
        part = Deferred[str]()
        waiting = self.wait(part)
        part.callback("result")
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual("result", self.successResultOf(part))
