"""Waiting for several Deferreds with one timeout."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.timeouts import all_fired_within


class AllFiredWithinTests(SynchronousTestCase):
    """The result of ``all_fired_within``, and its time."""

    def setUp(self) -> None:
        """Make a clock."""
        self.clock = Clock()

    def wait(self, *deferreds: Deferred[Any]) -> Deferred[bool]:
        """Wait at most ten seconds."""
        return Deferred.fromCoroutine(all_fired_within(self.clock, 10, deferreds))

    def test_nothing_to_wait_for(self) -> None:
        """Without Deferreds the result is True at once, without a timer."""
        self.assertTrue(self.successResultOf(self.wait()))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_ended_already(self) -> None:
        """Deferreds that have fired already are not waited for."""
        self.assertTrue(self.successResultOf(self.wait(succeed(1), succeed(2))))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_all_end_in_time(self) -> None:
        """The result is True when the last one has fired, and the timer is canceled."""
        first, second = Deferred[None](), Deferred[None]()
        waiting = self.wait(first, second)
        second.callback(None)
        self.clock.advance(9.9)
        self.assertNoResult(waiting)
        first.callback(None)
        # The callback that fires the last Deferred is not interrupted.
        self.assertNoResult(waiting)
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_one_is_late(self) -> None:
        """The result is False at the timeout; the late Deferred is not canceled."""
        canceled: list[object] = []
        late = Deferred[None](canceled.append)
        waiting = self.wait(late, succeed(None))
        self.clock.advance(10)
        self.assertFalse(self.successResultOf(waiting))
        self.assertEqual([], canceled)
        late.callback(None)

    def test_failure_is_an_end(self) -> None:
        """A Deferred that fails counts as fired, and its failure is logged."""
        part = Deferred[None]()
        waiting = self.wait(part)
        part.errback(ZeroDivisionError())
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_late_failure_is_logged(self) -> None:
        """A failure after the timeout is logged as well and not left unhandled."""
        part = Deferred[None]()
        waiting = self.wait(part)
        self.clock.advance(10)
        self.assertFalse(self.successResultOf(waiting))
        part.errback(ZeroDivisionError())
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_canceled_part_is_not_logged(self) -> None:
        """A canceled Deferred counts as fired and is not logged."""
        part = Deferred[None]()
        waiting = self.wait(part)
        part.cancel()
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual([], self.flushLoggedErrors())

    def test_canceled_wait(self) -> None:
        """Canceling the wait leaves no timer and does not cancel the Deferreds."""
        part = Deferred[None]()
        waiting = self.wait(part)
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual([], self.clock.getDelayedCalls())
        part.callback(None)

    def test_result_is_passed_on(self) -> None:
        """Other users of the Deferreds still get the results."""
        part = Deferred[str]()
        waiting = self.wait(part)
        part.callback("result")
        self.clock.advance(0)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual("result", self.successResultOf(part))
