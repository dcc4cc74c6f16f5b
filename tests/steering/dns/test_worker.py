"""Rounds of work: when they come, and when they end."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.dns.worker import LONGEST_PAUSE, PAUSE, SETTLE, STOP_PATIENCE, Worker

PERIOD = 100.0


class WorkerTests(SynchronousTestCase):
    """One that is started."""

    def setUp(self):
        """Have one whose rounds go well at once."""
        self.clock = Clock()
        self.rounds = 0
        self.result = lambda: succeed(True)
        self.worker = Worker(self.clock, self.work, PERIOD)
        self.addCleanup(self.close)
        self.lines = []
        globalLogPublisher.addObserver(self.note)
        self.addCleanup(globalLogPublisher.removeObserver, self.note)

    def close(self):
        """Stop it; no timer may be left."""
        if self.worker.running:
            self.successResultOf(self.worker.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def note(self, event):
        """Keep what is logged."""
        self.lines.append(formatEvent(event))

    async def work(self):
        """Do a round."""
        self.rounds += 1
        return await self.result()

    def advance(self, seconds):
        """Let time pass in small steps."""
        self.clock.pump([0.05] * round(seconds / 0.05))

    def test_a_round_at_the_start_and_each_period(self):
        """Nobody has to ask for them."""
        self.assertEqual(0, self.rounds)
        self.worker.startService()
        self.assertEqual(1, self.rounds)
        self.advance(PERIOD)
        self.assertEqual(1, self.rounds)
        self.advance(2 * PAUSE)
        self.assertEqual(2, self.rounds)

    def test_a_round_soon_after_a_change(self):
        """When all was quiet, a change waits only for others that come with it."""
        self.worker.startService()
        self.advance(2 * PAUSE)
        self.worker.wake()
        self.worker.wake()
        self.assertEqual(1, self.rounds)
        self.advance(2 * SETTLE)
        self.assertEqual(2, self.rounds)

    def test_many_changes_make_few_rounds(self):
        """However many there are, the rounds are a pause apart."""
        self.worker.startService()
        for _ in range(100):
            self.worker.wake()
            self.advance(0.1)
        self.assertTrue(8 <= self.rounds <= 11, self.rounds)

    def test_a_change_during_a_round_makes_another(self):
        """What may have come too late for a round is seen by the next one."""
        waiting = Deferred()
        self.result = lambda: waiting
        self.worker.startService()
        self.worker.wake()
        self.result = lambda: succeed(True)
        waiting.callback(True)
        self.advance(2 * PAUSE)
        self.assertEqual(2, self.rounds)

    def test_a_round_that_fails_is_tried_again(self):
        """For ever, with pauses that grow up to a bound."""
        self.result = lambda: succeed(False)
        self.worker.startService()
        self.advance(20 * LONGEST_PAUSE)
        failed = self.rounds
        self.assertTrue(20 <= failed <= 120, failed)
        self.result = lambda: succeed(True)
        self.advance(LONGEST_PAUSE + PAUSE)
        self.assertEqual(failed + 1, self.rounds)

    def test_changes_do_not_shorten_the_pause_after_a_failure(self):
        """An API that is overloaded is not asked more often because much happens."""
        self.result = lambda: succeed(False)
        self.worker.startService()
        for _ in range(round(20 * LONGEST_PAUSE / 0.5)):
            self.worker.wake()
            self.advance(0.5)
        self.assertLess(self.rounds, 120)

    def test_a_defect_is_told_and_tried_again(self):
        """Whatever a round raises, there is a next one."""
        self.result = lambda: fail(RuntimeError("defect"))
        self.worker.startService()
        self.assertEqual(1, len(self.flushLoggedErrors(RuntimeError)))
        self.result = lambda: succeed(True)
        self.advance(2 * PAUSE)
        self.assertEqual(2, self.rounds)

    def test_stopping_cancels_what_is_under_way(self):
        """It ends at once, and nothing follows."""
        cancelled = []
        self.result = lambda: Deferred(cancelled.append)
        self.worker.startService()
        self.assertTrue(self.successResultOf(self.worker.stopService()))
        self.assertEqual(1, len(cancelled))
        self.advance(2 * PERIOD)
        self.assertEqual(1, self.rounds)

    def test_stopping_between_rounds(self):
        """No pause outlives it."""
        for seconds in (0.5, PERIOD / 2, 2 * PERIOD):
            self.worker.startService()
            self.advance(seconds)
            self.assertTrue(self.successResultOf(self.worker.stopService()))
            self.assertEqual([], self.clock.getDelayedCalls())

    def test_a_round_that_says_nothing_of_its_cancellation(self):
        """One that ends as if it had failed is not followed by another, either."""
        self.result = lambda: Deferred(lambda cancelled: cancelled.callback(False))
        self.worker.startService()
        self.assertTrue(self.successResultOf(self.worker.stopService()))
        self.advance(2 * PERIOD)
        self.assertEqual(1, self.rounds)

    def test_a_round_that_does_not_end(self):
        """It is waited for, but not for ever, and it is told."""
        stubborn = Deferred()

        async def refuse_to_end():
            try:
                await Deferred()
            except CancelledError:
                await stubborn
            return True

        self.result = refuse_to_end
        self.worker.startService()
        stopped = self.worker.stopService()
        self.assertNoResult(stopped)
        self.advance(STOP_PATIENCE + 1)
        self.assertFalse(self.successResultOf(stopped))
        self.assertIn("Defect: what is under way does not end", self.lines[-1])
        stubborn.callback(True)
        self.advance(2 * PERIOD)
        self.assertEqual(1, self.rounds)

    def test_it_can_be_started_again(self):
        """As often as somebody leads."""
        for number in range(1, 4):
            self.worker.startService()
            self.assertEqual(number, self.rounds)
            self.successResultOf(self.worker.stopService())
        self.worker.wake()
        self.advance(PERIOD)
        self.assertEqual(3, self.rounds)

    def test_stopping_one_that_was_not_started(self):
        """There is nothing to wait for."""
        self.assertTrue(self.successResultOf(self.worker.stopService()))
