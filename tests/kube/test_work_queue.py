"""The work queue: deduplication, concurrency and retries."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.kube import work_queue
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.work_queue import BURST, MAX_BACKOFF, STOP_TIMEOUT, WorkQueue

UNREACHABLE = ApiUnreachable("GET https://api:6443/: connection refused")


class WorkQueueTestCase(SynchronousTestCase):
    """A queue whose handlers complete when the test says so."""

    def setUp(self):
        """Start a queue with the test's handler."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.begun = []
        self.under_way = {}
        self.results = {}
        self.lines = Logged(self)
        self.queue = WorkQueue(self.clock, self.handle)
        self.queue.startService()

    async def handle(self, key):
        """Handle a key as :attr:`results` says, or until :meth:`finish`."""
        self.begun.append(key)
        self.assertNotIn(key, self.under_way)
        if key in self.results:
            if self.results[key] is not None:
                raise self.results[key]
            return
        self.under_way[key] = Deferred()
        try:
            await self.under_way[key]
        finally:
            del self.under_way[key]

    def finish(self, key, error=None):
        """Complete the handling of a key."""
        waiting = self.under_way[key]
        if error is None:
            waiting.callback(None)
        else:
            waiting.errback(error)

    def attempts_until(self, seconds):
        """Advance the clock in small steps; return the times of attempts, in seconds."""
        times, start = [], self.clock.seconds()
        while self.clock.seconds() - start < seconds:
            call = min((call.getTime() for call in self.clock.getDelayedCalls()), default=None)
            if call is None or call - start > seconds:
                break
            before = len(self.begun)
            self.clock.advance(call - self.clock.seconds())
            times += [round(self.clock.seconds() - start, 3)] * (len(self.begun) - before)
        return times


class HandlingTests(WorkQueueTestCase):
    """Handling of keys."""

    def test_workers(self):
        """As many keys are handled at a time as there are workers, in the order of adding."""
        for key in "abcd":
            self.queue.add(key)
        self.assertEqual(["a", "b"], self.begun)
        self.finish("b")
        self.assertEqual(["a", "b", "c"], self.begun)
        self.finish("a")
        self.finish("c")
        self.finish("d")
        self.assertEqual(list("abcd"), self.begun)
        self.assertEqual(0, len(self.queue))

    def test_once_while_waiting(self):
        """A key that is added again while it is queued is handled once."""
        for key in "abccc":
            self.queue.add(key)
        for key in "abc":
            self.finish(key)
        self.assertEqual(list("abc"), self.begun)

    def test_once_more(self):
        """A key that is added while it is handled is handled once more, after that."""
        self.queue.add("a")
        self.queue.add("a")
        self.queue.add("a")
        self.assertEqual(["a"], self.begun)
        self.finish("a")
        self.assertEqual(["a", "a"], self.begun)
        self.finish("a")
        self.assertEqual(["a", "a"], self.begun)

    def test_many_that_end_at_once(self):
        """Thousands of keys whose handlers complete at once cause no recursion."""
        self.queue.add("a")
        self.queue.add("b")
        for number in range(5000):
            self.results[str(number)] = None
            self.queue.add(str(number))
        self.finish("a")
        self.assertEqual(5002, len(self.begun))

    def test_before_start(self):
        """Keys that are added before the start are handled after it."""
        queue = WorkQueue(self.clock, self.handle)
        queue.add("a")
        self.assertEqual([], self.begun)
        queue.startService()
        self.assertEqual(["a"], self.begun)
        self.finish("a")

    def test_bound(self):
        """Keys over the limit are dropped and logged; there is room again afterwards."""
        self.patch(work_queue, "MAX_KEYS", 3)
        for key in "abcde":
            self.queue.add(key)
        self.queue.add("c")
        self.assertEqual(3, len(self.queue))
        self.assertEqual(1, len([line for line in self.lines if "d is not processed" in line]))
        for key in "abc":
            self.finish(key)
        self.assertEqual(list("abc"), self.begun)
        self.queue.add("d")
        self.assertEqual(list("abcd"), self.begun)


class FailureTests(WorkQueueTestCase):
    """Failures."""

    def test_backoff(self):
        """A failed key is retried after pauses that double up to the longest."""
        self.results["a"] = UNREACHABLE
        self.queue.add("a")
        self.assertEqual(
            [0.005, 0.015, 0.035, 0.075, 0.155, 0.315, 0.635], self.attempts_until(1.0)
        )
        _ = self.attempts_until(4000)
        last = self.attempts_until(4000)
        self.assertAlmostEqual(MAX_BACKOFF, last[-1] - last[-2])

    def test_success_resets(self):
        """After a success, the backoff is reset."""
        self.results["a"] = UNREACHABLE
        self.queue.add("a")
        _ = self.attempts_until(10.0)
        self.results["a"] = None
        self.queue.add("a")
        self.assertEqual(0, len(self.queue))
        self.results["a"] = UNREACHABLE
        self.queue.add("a")
        self.assertEqual([0.005, 0.015], self.attempts_until(0.02))

    def test_added_in_a_pause(self):
        """A key that is added while it waits for a retry is retried at once, and once."""
        self.results["a"] = UNREACHABLE
        self.queue.add("a")
        _ = self.attempts_until(5.0)
        before = len(self.begun)
        self.results["a"] = None
        self.queue.add("a")
        self.assertEqual(before + 1, len(self.begun))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_added_while_it_fails(self):
        """A key that is added while a failing handler runs is handled again at once."""
        self.queue.add("a")
        self.queue.add("a")
        self.finish("a", UNREACHABLE)
        self.assertEqual(["a", "a"], self.begun)
        self.finish("a")
        self.assertEqual(0, len(self.queue))

    def test_overall_rate(self):
        """If many keys fail, 10 a second are retried beyond the burst."""
        count = BURST + 50
        for number in range(count):
            self.results[str(number)] = UNREACHABLE
            self.queue.add(str(number))
        for _ in range(60):
            self.clock.advance(0.1)
        self.assertLess(len(self.begun), count + BURST + 10 * 6 + 2)
        self.assertGreaterEqual(len(self.begun), count + BURST)

    def test_reported(self):
        """A failure is one line of the log, with a rate limit."""
        for number in range(20):
            self.results[str(number)] = UNREACHABLE
            self.queue.add(str(number))
        matching = [line for line in self.lines if str(UNREACHABLE) in line]
        self.assertEqual([f"0: {UNREACHABLE}; retrying"], matching)

    def test_defect(self):
        """An unexpected exception is logged with its traceback, and the key is retried."""
        self.results["a"] = ValueError("mistake")
        self.queue.add("a")
        self.results["a"] = None
        self.clock.advance(0.005)
        self.assertEqual(["a", "a"], self.begun)
        [failure] = self.flushLoggedErrors(ValueError)
        self.assertEqual("mistake", str(failure.value))


class StopTests(WorkQueueTestCase):
    """Stop and restart."""

    def test_waits(self):
        """Stopping waits for handlers in progress and drops other keys; a restart begins anew."""
        for key in "abc":
            self.queue.add(key)
        stopped = self.queue.stopService()
        self.assertNoResult(stopped)
        self.finish("a")
        self.finish("b")
        self.successResultOf(stopped)
        self.assertEqual(["a", "b"], self.begun)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.queue.startService()
        self.assertEqual(["a", "b"], self.begun)
        self.queue.add("c")
        self.finish("c")
        self.assertEqual(["a", "b", "c"], self.begun)

    def test_cancels(self):
        """A handler that does not end in time is cancelled, and not retried."""
        self.queue.add("a")
        stopped = self.queue.stopService()
        waiting = self.under_way["a"]
        self.clock.advance(STOP_TIMEOUT - 0.1)
        self.assertFalse(waiting.called)
        self.clock.advance(0.1)
        self.assertTrue(waiting.called)
        self.successResultOf(stopped)
        self.queue.startService()
        self.clock.advance(2000)
        self.assertEqual(["a"], self.begun)

    def test_does_not_end(self):
        """If a handler does not end when cancelled, this is logged, and the stop ends."""
        swallowed, goes_on = [], Deferred()

        async def handle(key):
            try:
                await Deferred()
            except CancelledError:
                swallowed.append(key)
            await goes_on

        queue = WorkQueue(self.clock, handle)
        queue.startService()
        queue.add("a")
        stopped = queue.stopService()
        self.clock.advance(STOP_TIMEOUT)
        self.assertEqual(["a"], swallowed)
        self.assertNoResult(stopped)
        self.clock.advance(STOP_TIMEOUT)
        self.successResultOf(stopped)
        self.assertTrue(any("does not end" in line for line in self.lines))
        # The key still belongs to its handler: it is handled again only after that.
        queue.startService()
        queue.add("a")
        self.assertEqual(["a"], swallowed)
        goes_on.callback(None)
        self.successResultOf(self.advanced(queue.stopService()))
        self.assertEqual(["a", "a"], swallowed)

    def advanced(self, deferred):
        """Advance the clock for a stop."""
        self.clock.advance(STOP_TIMEOUT)
        self.clock.advance(STOP_TIMEOUT)
        return deferred

    def test_failure_while_stopping(self):
        """A failure while the queue stops is not retried."""
        self.queue.add("a")
        stopped = self.queue.stopService()
        self.finish("a", UNREACHABLE)
        self.successResultOf(stopped)
        self.assertEqual(0, len(self.queue))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_pauses_are_reset(self):
        """Keys that wait for a retry are dropped."""
        self.results["a"] = UNREACHABLE
        self.queue.add("a")
        self.successResultOf(self.queue.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(0, len(self.queue))

    def test_added_after_the_stop(self):
        """Keys that are added after the stop wait for the next start."""
        self.successResultOf(self.queue.stopService())
        self.queue.add("a")
        self.assertEqual([], self.begun)
        self.queue.startService()
        self.assertEqual(["a"], self.begun)
        self.finish("a")
