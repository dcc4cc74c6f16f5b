"""Tests of when rules are read."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.probe_schedule import (
    MIN_PAUSE,
    OVERDUE_SECONDS,
    PAUSE_FACTOR,
    RECHECK_SECONDS,
    ProbeSchedule,
)

PERIOD = 60.0
REQUEST_SECONDS = 0.5


class ProbeScheduleTests(SynchronousTestCase):
    """A kernel that counts changes, and one that does not."""

    def setUp(self):
        """Start without knowledge."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.schedule = ProbeSchedule(self.clock, PERIOD)

    def check(self, found, after=None, cost=0.0):
        """Check, and make changes if the generation ``after`` it differs."""
        end = found if after is None else after
        self.schedule.sets_checked()
        self.schedule.succeeded(cost, {4: found}, {4: end}, after is not None)

    def decisions(self, generation):
        """Return whether rules have to be read, and whether a sync is needed for that."""
        return self.schedule.is_due({4: generation}), self.schedule.wants_sync({4: generation})

    def test_first(self):
        """Nothing is known at first, and after a failure; this requests no sync."""
        self.assertEqual((True, False), self.decisions(1))
        self.check(1)
        self.assertEqual((False, False), self.decisions(1))
        self.schedule.failed()
        self.assertEqual((True, False), self.decisions(1))

    def test_changes_of_others(self):
        """They are checked, but only after some time since the last check."""
        self.check(1)
        self.assertEqual((False, False), self.decisions(2))
        self.clock.advance(MIN_PAUSE)
        self.assertEqual((False, False), self.decisions(1))
        self.assertEqual((True, True), self.decisions(2))

    def test_sets(self):
        """Unchanged rules are not read; sets are checked, and not more often."""
        self.check(1)
        for _ in range(3):
            self.clock.advance(RECHECK_SECONDS - 1)
            self.assertEqual((False, False), self.decisions(1))
            self.clock.advance(1)
            self.assertEqual((False, True), self.decisions(1))
            self.schedule.sets_checked()
            self.assertEqual((False, False), self.decisions(1))

    def test_sets_where_changes_are_not_counted(self):
        """A check of the sets only does not delay the check of the rules."""
        self.check(None)
        for _ in range(2):
            self.clock.advance(RECHECK_SECONDS / 2)
            self.schedule.sets_checked()
        self.assertEqual((True, True), self.decisions(None))

    def test_own_changes(self):
        """After a change there is one more check, and then none."""
        self.check(1, after=2)
        self.clock.advance(MIN_PAUSE)
        self.assertEqual((True, True), self.decisions(2))
        self.check(2)
        self.clock.advance(MIN_PAUSE)
        self.assertEqual((False, False), self.decisions(2))

    def test_changes_between_reading_and_the_end(self):
        """Changes of others are detected if nothing was changed here."""
        self.schedule.succeeded(0.0, {4: 1}, {4: 2}, changed=False)
        self.clock.advance(MIN_PAUSE)
        self.assertEqual((True, True), self.decisions(2))

    def test_blind(self):
        """If changes are not counted, rules are checked periodically."""
        self.check(None)
        self.clock.advance(MIN_PAUSE)
        self.assertEqual((True, False), self.decisions(None))
        self.clock.advance(RECHECK_SECONDS - MIN_PAUSE)
        self.assertEqual((True, True), self.decisions(None))

    def test_expensive_checks(self):
        """Checks use a small share of a processor, whatever others do."""
        for generation in (1, None):
            self.check(generation, cost=2.0)
            self.clock.advance(PAUSE_FACTOR * 2.0 - 1)
            self.assertEqual((False, False), self.decisions(generation and 5))
            self.clock.advance(1)
            self.assertEqual((True, True), self.decisions(generation and 5))

    def test_very_expensive_checks(self):
        """The pause after a check is at most a period, and at least the minimum."""
        self.check(1, cost=3600.0)
        self.clock.advance(PERIOD - 1)
        self.assertEqual((False, False), self.decisions(2))
        self.clock.advance(1)
        self.assertEqual((True, True), self.decisions(2))
        self.schedule = ProbeSchedule(self.clock, MIN_PAUSE - 1)
        self.check(1, cost=3600.0)
        self.clock.advance(MIN_PAUSE - 0.5)
        self.assertEqual((False, False), self.decisions(2))
        self.clock.advance(0.5)
        self.assertEqual((True, True), self.decisions(2))

    def test_clock_set_back(self):
        """A clock that is set back does not delay the next check."""
        self.check(1)
        self.clock.rightNow -= 3600
        self.assertEqual((True, True), self.decisions(2))

    def test_overdue(self):
        """An overdue check of changed rules is a problem."""
        for found, now in ((1, 2), (None, None)):
            self.schedule.failed()
            self.assertFalse(self.schedule.is_overdue({4: now}))
            self.check(found)
            self.clock.advance(RECHECK_SECONDS + OVERDUE_SECONDS - 1)
            self.assertFalse(self.schedule.is_overdue({4: now}))
            self.clock.advance(1)
            self.assertTrue(self.schedule.is_overdue({4: now}))
        self.check(1)
        self.clock.advance(PERIOD)
        self.assertFalse(self.schedule.is_overdue({4: 1}))
        self.check(1, cost=3.0)
        self.clock.advance(PERIOD + OVERDUE_SECONDS - 1)
        self.assertFalse(self.schedule.is_overdue({4: 2}))
        self.clock.advance(1)
        self.assertTrue(self.schedule.is_overdue({4: 2}))


_STEPS = st.one_of(
    st.tuples(st.just("look"), st.booleans(), st.floats(0, 4000)),
    st.tuples(st.just("failed")),
    st.tuples(st.just("passes"), st.floats(0, 4000)),
    st.tuples(st.just("is set back"), st.floats(0, 4000)),
)


class AnyOrderTests(SynchronousTestCase):
    """Checks, changes, failures and steps of the clock in any order."""

    @given(st.lists(_STEPS, max_size=12), st.booleans())
    @example([("look", True, 10.0), ("is set back", 3600.0)], True)
    def test_pause_is_bounded(self, steps, counts):
        """Whatever has happened, changes of others are checked within the pause."""
        clock = Clock()
        clock.advance(100_000)
        schedule = ProbeSchedule(clock, PERIOD)
        generation = 0
        for step, *arguments in steps:
            if step == "look":
                changed, cost = arguments
                before = {4: generation if counts else None}
                generation += changed
                after = {4: generation if counts else None}
                schedule.succeeded(cost, before, after, changed)
            elif step == "failed":
                schedule.failed()
            else:
                clock.rightNow += arguments[0] if step == "passes" else -arguments[0]
        now = {4: generation + 1 if counts else None}
        waited = 0.0
        while not schedule.is_due(now):
            clock.advance(REQUEST_SECONDS)
            waited += REQUEST_SECONDS
            self.assertLessEqual(waited, PERIOD + REQUEST_SECONDS)
