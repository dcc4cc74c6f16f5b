"""The reconcile loop: when its runs start, and when they end."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred, TimeoutError, fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.reconciler import CANCEL_SECONDS, Phase, Reconciler

PERIOD = 100.0
SETTLE = 0.1
SPACING = 1.0
MAX_SECONDS = 30.0
DEADLINE = 200.0
FINISH = 5.0


OVERDUE = "keeping it took more than 200.0 s and is cancelled; it is retried once it has ended"


class Expected(Exception):
    """An expected error, of which only the message is logged."""


class ReconcilerTestCase(SynchronousTestCase):
    """A reconciler whose runs succeed at once, unless a test says otherwise."""

    def setUp(self):
        """Make the reconciler; each test starts it."""
        self.clock = Clock()
        self.runs = 0
        self.result = lambda: succeed(None)
        self.make()
        self.lines = Logged(self)
        self.addCleanup(self.close)

    def make(self, **options):
        """Make a reconciler with all pauses and with ``options``."""
        defaults = {
            "settle": SETTLE,
            "spacing": SPACING,
            "backoff": Backoff(SPACING, MAX_SECONDS),
            "expected": (Expected,),
        }
        self.reconciler = Reconciler(
            self.clock, PERIOD, "keeping it", self.reconcile, **{**defaults, **options}
        )

    def close(self):
        """Stop the reconciler and check that no timer is left."""
        if self.reconciler.running:
            self.assertTrue(self.stopped())
        self.assertEqual([], self.clock.getDelayedCalls())

    def refuse_to_end(self):
        """Make runs ignore cancellation; return the Deferred that ends them."""
        unfinished = Deferred()

        async def work():
            try:
                await Deferred()
            except CancelledError:
                await unfinished
            return True

        self.result = work
        return unfinished

    def stopped(self):
        """Stop the reconciler, which must take no time; return its result."""
        return self.successResultOf(self.reconciler.stopService())

    async def reconcile(self):
        """Count the run and return its result."""
        self.runs += 1
        return await self.result()

    def advance(self, seconds):
        """Let time pass in small steps."""
        self.clock.pump([0.05] * round(seconds / 0.05))


class RunTests(ReconcilerTestCase):
    """When runs start."""

    def test_at_the_start_and_each_period(self):
        """A run starts at the start and after each period, without a trigger."""
        self.assertEqual((0, Phase.STOPPED), (self.runs, self.reconciler.phase))
        self.reconciler.startService()
        self.assertEqual((1, Phase.RESTING), (self.runs, self.reconciler.phase))
        self.clock.advance(SPACING)
        self.assertEqual(Phase.IDLE, self.reconciler.phase)
        self.clock.advance(PERIOD - SPACING - 0.01)
        self.assertEqual(1, self.runs)
        self.clock.advance(0.01)
        self.assertEqual(2, self.runs)
        self.clock.pump([SPACING, PERIOD - SPACING])
        self.assertEqual(3, self.runs)

    def test_a_period_shorter_than_the_spacing(self):
        """When the period is shorter than the spacing, the spacing applies."""
        self.make(spacing=2 * PERIOD)
        self.reconciler.startService()
        self.clock.advance(2 * PERIOD)
        self.clock.advance(0)
        self.assertEqual(2, self.runs)

    def test_soon_after_a_trigger(self):
        """After an idle time a trigger waits only for the settle time."""
        self.reconciler.startService()
        self.advance(2 * SPACING)
        self.reconciler.trigger()
        self.clock.advance(SETTLE / 2)
        self.reconciler.trigger()
        self.assertEqual((1, Phase.SETTLING), (self.runs, self.reconciler.phase))
        self.clock.advance(SETTLE / 2 + 0.001)
        self.assertEqual(2, self.runs)
        self.advance(10 * SPACING)
        self.assertEqual(2, self.runs)

    def test_at_once(self):
        """An immediate trigger skips the settle time but not the spacing."""
        self.reconciler.startService()
        self.reconciler.trigger(settle=0.0)
        self.clock.advance(SPACING - 0.001)
        self.assertEqual(1, self.runs)
        self.clock.advance(0.001)
        self.assertEqual(2, self.runs)
        self.clock.advance(SPACING)
        self.reconciler.trigger()
        self.reconciler.trigger(settle=0.0)
        self.assertEqual(2, self.runs)
        self.clock.advance(0)
        self.assertEqual(3, self.runs)

    def test_the_shortest_settle_time_counts(self):
        """Of several triggers, before a run and during it, the shortest settle time counts."""
        self.reconciler.startService()
        self.clock.advance(SPACING)
        for settle in (10 * SETTLE, 2 * SETTLE, 3 * SETTLE):
            self.reconciler.trigger(settle=settle)
        self.clock.advance(2 * SETTLE - 0.001)
        self.assertEqual(1, self.runs)
        waiting = Deferred()
        self.result = lambda: waiting
        self.clock.advance(0.001)
        self.assertEqual((2, Phase.RUNNING), (self.runs, self.reconciler.phase))
        for settle in (10 * SETTLE, 4 * SETTLE, 5 * SETTLE):
            self.reconciler.trigger(settle=settle)
        waiting.callback(True)
        self.clock.pump([SPACING, 4 * SETTLE - 0.001])
        self.assertEqual(2, self.runs)
        self.clock.advance(0.001)
        self.assertEqual(3, self.runs)

    def test_burst(self):
        """After an idle time a burst of runs may skip the spacing, but not more on average."""
        self.make(burst=2, settle=0.0)
        self.reconciler.startService()
        for _ in range(2):
            self.reconciler.trigger()
            self.clock.advance(0)
        self.assertEqual((2, Phase.RESTING), (self.runs, self.reconciler.phase))
        for runs in (3, 4, 5):
            self.reconciler.trigger()
            self.clock.advance(SPACING - 0.001)
            self.assertEqual(runs - 1, self.runs)
            self.clock.pump([0.001, 0])
            self.assertEqual(runs, self.runs)
        self.advance(3 * SPACING)
        for runs in (6, 7):
            self.reconciler.trigger()
            self.clock.advance(0)
            self.assertEqual(runs, self.runs)
        self.assertEqual(Phase.RESTING, self.reconciler.phase)

    def test_many_triggers_make_few_runs(self):
        """Any number of triggers keeps the spacing between runs."""
        self.reconciler.startService()
        for _ in range(100):
            self.reconciler.trigger()
            self.advance(0.1)
        self.assertTrue(8 <= self.runs <= 11, self.runs)

    def test_a_trigger_during_a_run_makes_another(self):
        """A trigger during a run starts another run afterwards."""
        waiting = Deferred()
        self.result = lambda: waiting
        self.reconciler.startService()
        self.assertEqual(Phase.RUNNING, self.reconciler.phase)
        self.reconciler.trigger()
        self.reconciler.trigger(settle=0.0)
        self.advance(PERIOD)
        self.assertEqual(1, self.runs)
        self.result = lambda: succeed(True)
        waiting.callback(True)
        self.advance(2 * SPACING)
        self.assertEqual(2, self.runs)
        self.advance(2 * SPACING)
        self.assertEqual(2, self.runs)

    def test_before_the_start(self):
        """A trigger before the start does not start a run."""
        self.reconciler.trigger()
        self.clock.advance(PERIOD)
        self.assertEqual(0, self.runs)


class FailureTests(ReconcilerTestCase):
    """What happens after a failed run."""

    def test_retried(self):
        """A failed run is retried forever with backoff, which a success resets."""
        self.patch(random, "uniform", lambda low, high: high)
        self.result = lambda: succeed(False)
        self.reconciler.startService()
        for seconds in (2.0, 4.0, 8.0, 16.0, MAX_SECONDS, MAX_SECONDS):
            self.assertEqual(Phase.BACKING_OFF, self.reconciler.phase)
            before = self.runs
            self.clock.advance(seconds - 0.01)
            self.assertEqual(before, self.runs)
            if seconds == MAX_SECONDS:
                self.result = lambda: succeed(True)
            self.clock.advance(0.01)
            self.assertEqual(before + 1, self.runs)
            if seconds == MAX_SECONDS:
                break
        self.result = lambda: succeed(False)
        self.clock.advance(SPACING)
        self.reconciler.trigger()
        self.clock.advance(SETTLE)
        before = self.runs
        self.clock.advance(2.0)
        self.assertEqual(before + 1, self.runs)

    def test_never_later_than_the_period(self):
        """Without backoff, or with a longer one, a failed run is retried after the period."""
        self.patch(random, "uniform", lambda low, high: high)
        for backoff in (None, Backoff(10 * PERIOD, 20 * PERIOD)):
            self.make(backoff=backoff)
            self.result = lambda: fail(Expected("no"))
            before = self.runs
            self.reconciler.startService()
            self.clock.advance(PERIOD - 0.01)
            self.assertEqual(before + 1, self.runs)
            self.clock.advance(0.01)
            self.assertEqual(before + 2, self.runs)
            self.assertTrue(self.stopped())

    def test_triggers_do_not_shorten_the_pause(self):
        """Triggers do not shorten the backoff, which protects an overloaded API."""
        self.result = lambda: succeed(False)
        self.reconciler.startService()
        for number in range(round(20 * MAX_SECONDS / 0.5)):
            self.reconciler.trigger(settle=None if number % 2 else 0.0)
            self.advance(0.5)
        self.assertLess(self.runs, 120)

    def test_expected(self):
        """An expected error is logged with its message."""
        self.result = lambda: fail(Expected("the disk is full"))
        self.reconciler.startService()
        self.assertEqual(["keeping it failed: the disk is full"], self.lines)
        self.result = lambda: succeed(None)
        self.advance(2 * SPACING)
        self.assertEqual(2, self.runs)

    def test_defect(self):
        """An unexpected exception is logged with its traceback, and the next run takes place."""
        self.result = lambda: fail(RuntimeError("defect"))
        self.reconciler.startService()
        self.assertEqual(1, len(self.flushLoggedErrors(RuntimeError)))
        self.assertIn("Defect: keeping it failed; retrying", self.lines[0])
        self.result = lambda: succeed(True)
        self.advance(2 * SPACING)
        self.assertEqual(2, self.runs)

    def test_deadline(self):
        """A run that exceeds its deadline is cancelled, logged and retried."""
        self.make(deadline=DEADLINE)
        cancelled = []
        self.result = lambda: Deferred(cancelled.append)
        self.reconciler.startService()
        self.clock.advance(DEADLINE - 0.01)
        self.assertEqual([], cancelled)
        self.clock.advance(0.01)
        self.assertEqual(1, len(cancelled))
        self.assertEqual([OVERDUE], self.lines)
        self.result = lambda: succeed(True)
        self.advance(2 * SPACING)
        self.assertEqual(2, self.runs)

    def test_a_timeout_inside_a_run(self):
        """A TimeoutError inside a run is logged as itself and not as an exceeded deadline."""
        for options in ({}, {"deadline": DEADLINE}):
            self.make(**options)
            self.result = lambda: fail(TimeoutError("the API does not answer"))
            self.reconciler.startService()
            self.assertIn("Defect: keeping it failed; retrying", self.lines.pop())
            errors = self.flushLoggedErrors(TimeoutError)
            self.assertEqual(["the API does not answer"], [str(error.value) for error in errors])
            self.assertTrue(self.stopped())
        self.make(deadline=DEADLINE, expected=(TimeoutError,))
        self.reconciler.startService()
        self.assertEqual(["keeping it failed: the API does not answer"], self.lines)

    def test_a_run_that_ignores_its_cancellation(self):
        """A run that ignores its cancellation is logged, and the next run waits for its end."""
        self.make(deadline=DEADLINE)
        unfinished = self.refuse_to_end()
        self.reconciler.startService()
        self.clock.advance(DEADLINE)
        self.assertEqual(([OVERDUE], Phase.RUNNING), (self.lines, self.reconciler.phase))
        unfinished.callback(True)
        self.result = lambda: succeed(True)
        self.advance(2 * SPACING)
        self.assertEqual((2, [OVERDUE]), (self.runs, self.lines))


class StopTests(ReconcilerTestCase):
    """Stopping, and starting again."""

    def test_cancels_the_current_run(self):
        """Stopping cancels the current run at once, without a log line or a further run."""
        cancelled = []
        self.result = lambda: Deferred(cancelled.append)
        self.reconciler.startService()
        self.assertTrue(self.stopped())
        self.assertEqual((1, Phase.STOPPED), (len(cancelled), self.reconciler.phase))
        self.advance(2 * PERIOD)
        self.assertEqual((1, []), (self.runs, self.lines))

    def test_grace_time(self):
        """A run may finish within a grace time before stopping cancels it."""
        for seconds in (FINISH - 0.1, FINISH):
            self.make(finish=FINISH)
            cancelled = []
            pending_run = Deferred(cancelled.append)
            self.result = lambda pending_run=pending_run: pending_run
            self.reconciler.startService()
            stopped = self.reconciler.stopService()
            self.clock.advance(seconds)
            if seconds < FINISH:
                self.assertNoResult(stopped)
                pending_run.callback(True)
            self.assertEqual(seconds == FINISH, bool(cancelled))
            self.assertTrue(self.successResultOf(stopped))
            self.assertEqual([], self.clock.getDelayedCalls())

    def test_between_runs(self):
        """Stopping cancels all timers."""
        for seconds in (0.5, PERIOD / 2, 2 * PERIOD):
            self.reconciler.startService()
            self.advance(seconds)
            self.assertTrue(self.stopped())
            self.assertEqual([], self.clock.getDelayedCalls())

    def test_a_cancelled_run_that_fails(self):
        """A cancelled run that returns a failure is not retried."""
        self.result = lambda: Deferred(lambda cancelled: cancelled.callback(False))
        self.reconciler.startService()
        self.assertTrue(self.stopped())
        self.advance(2 * PERIOD)
        self.assertEqual(1, self.runs)

    def test_a_run_that_does_not_end(self):
        """Stopping waits only for a limited time for a run that ignores cancellation."""
        unfinished = self.refuse_to_end()
        self.reconciler.startService()
        stopped = self.reconciler.stopService()
        self.clock.advance(CANCEL_SECONDS - 0.01)
        self.assertNoResult(stopped)
        self.clock.advance(0.01)
        self.assertFalse(self.successResultOf(stopped))
        self.assertEqual(["Defect: keeping it does not end though it is cancelled"], self.lines)
        unfinished.callback(True)
        self.advance(2 * PERIOD)
        self.assertEqual(1, self.runs)

    def test_restarted(self):
        """The reconciler can be restarted any number of times, each time with a fresh backoff."""
        self.patch(random, "uniform", lambda low, high: high)
        for number in range(1, 4):
            self.result = lambda: succeed(False)
            self.reconciler.startService()
            self.assertEqual(2 * number - 1, self.runs)
            self.clock.advance(2.0)
            self.assertEqual(2 * number, self.runs)
            self.assertTrue(self.stopped())
        self.reconciler.trigger()
        self.advance(PERIOD)
        self.assertEqual(6, self.runs)

    def test_restarted_during_an_earlier_run(self):
        """After a restart the first run waits for the end of a run from before."""
        unfinished = self.refuse_to_end()
        self.reconciler.startService()
        stopped = self.reconciler.stopService()
        self.reconciler.startService()
        self.reconciler.trigger()
        self.clock.advance(2 * PERIOD)
        self.assertFalse(self.successResultOf(stopped))
        self.assertEqual(1, self.runs)
        self.result = lambda: succeed(True)
        unfinished.errback(ZeroDivisionError())
        self.assertEqual((2, Phase.RESTING), (self.runs, self.reconciler.phase))
        self.assertEqual(1, len(self.lines), self.lines)

    def test_stopped_by_its_own_run(self):
        """A run may stop the reconciler."""

        async def work():
            self.reconciler.stopService()

        self.result = work
        self.reconciler.startService()
        self.assertEqual(Phase.STOPPED, self.reconciler.phase)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_not_started(self):
        """Stopping a reconciler that was not started returns at once."""
        self.assertTrue(self.stopped())


class SettableClock:
    """A clock whose time can be set, while its timers are unaffected."""

    def __init__(self, clock):
        self._clock = clock
        self.step = 0.0
        self.callLater = clock.callLater

    def seconds(self):
        """Return the time, including steps of the clock."""
        return self._clock.seconds() + self.step


_EVENTS = st.one_of(
    st.tuples(st.sampled_from(("trigger", "at once", "well", "false", "raise", "hang", "free"))),
    st.tuples(st.sampled_from(("stop", "start"))),
    st.tuples(st.just("passes"), st.floats(0, 2 * PERIOD)),
    st.tuples(st.just("is set"), st.floats(-1e6, 1e6)),
)


class AnyOrderTests(SynchronousTestCase):
    """Triggers, results, stops and clock steps in any order."""

    @settings(deadline=None, max_examples=150)
    @given(st.lists(_EVENTS, max_size=20), st.sampled_from((1, 2)))
    @example([("hang",), ("trigger",), ("is set", -3600.0), ("passes", 3.0), ("well",)], 1)
    def test_bounded(self, events, burst):
        """Runs never overlap, follow each trigger and period, and a stop leaves no timer."""
        clock = Clock()
        settable = SettableClock(clock)
        state = {"runs": 0, "under_way": 0, "does": "well"}
        pending_runs = []

        async def reconcile():
            state["runs"] += 1
            state["under_way"] += 1
            self.assertEqual(1, state["under_way"])
            try:
                if state["does"] == "hang":
                    pending_run = Deferred()
                    pending_runs.append(pending_run)
                    await pending_run
                if state["does"] == "raise":
                    raise Expected
                return state["does"] != "false"
            finally:
                state["under_way"] -= 1

        reconciler = Reconciler(
            settable,
            PERIOD,
            "keeping it",
            reconcile,
            settle=SETTLE,
            spacing=SPACING,
            burst=burst,
            backoff=Backoff(SPACING, MAX_SECONDS),
            deadline=DEADLINE,
            expected=(Expected,),
        )

        def free():
            while pending_runs:
                pending_run = pending_runs.pop()
                if not pending_run.called:
                    pending_run.callback(None)

        def passes(seconds):
            clock.pump([0.25] * int(seconds / 0.25))

        for event, *arguments in events:
            if event in ("trigger", "at once"):
                reconciler.trigger(settle=0.0 if event == "at once" else None)
            elif event == "stop" and reconciler.running:
                self.assertTrue(self.successResultOf(reconciler.stopService()))
            elif event == "start" and not reconciler.running:
                reconciler.startService()
            elif event == "free":
                free()
            elif event == "passes":
                passes(arguments[0])
            elif event == "is set":
                settable.step += arguments[0]
            elif event in ("well", "false", "raise", "hang"):
                state["does"] = event
        state["does"] = "well"
        if not reconciler.running:
            reconciler.startService()
        free()
        for bound in (max(MAX_SECONDS, SPACING + SETTLE), PERIOD):
            before = state["runs"]
            if bound != PERIOD:
                reconciler.trigger()
            passes(bound + 0.5)
            self.assertGreater(state["runs"], before)
        self.assertTrue(self.successResultOf(reconciler.stopService()))
        self.assertEqual([], clock.getDelayedCalls())
