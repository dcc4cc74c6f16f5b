"""When rules are read."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.probe_schedule import (
    BLIND_PAUSE,
    LEAST_PAUSE,
    MOST_SHARE,
    OVERDUE_SECONDS,
    ProbeSchedule,
)

PERIOD = 60.0
ASKED_EACH = 0.5


class LooksTests(SynchronousTestCase):
    """A kernel that counts changes, and one that does not."""

    def setUp(self):
        """Begin without knowing anything."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.looks = ProbeSchedule(self.clock, PERIOD)

    def look(self, found, after=None, cost=0.0):
        """Look, and make changes if there is another state ``after`` it."""
        end = found if after is None else after
        self.looks.saw_sets()
        self.looks.ended(cost, {4: found}, {4: end}, after is not None)

    def asked(self, generation):
        """Return whether rules have to be read, and whether there should be a sync for that."""
        return self.looks.is_due({4: generation}), self.looks.wants_sync({4: generation})

    def test_first(self):
        """Nothing is known at first, and after a failure; who asks then is not hurried."""
        self.assertEqual((True, False), self.asked(1))
        self.look(1)
        self.assertEqual((False, False), self.asked(1))
        self.looks.failed()
        self.assertEqual((True, False), self.asked(1))

    def test_changes_of_others(self):
        """They are looked at, but not before some time has passed since the last look."""
        self.look(1)
        self.assertEqual((False, False), self.asked(2))
        self.clock.advance(LEAST_PAUSE)
        self.assertEqual((False, False), self.asked(1))
        self.assertEqual((True, True), self.asked(2))

    def test_sets(self):
        """Rules that nobody has changed are not read; sets are looked at, and not more often."""
        self.look(1)
        for _ in range(3):
            self.clock.advance(BLIND_PAUSE - 1)
            self.assertEqual((False, False), self.asked(1))
            self.clock.advance(1)
            self.assertEqual((False, True), self.asked(1))
            self.looks.saw_sets()
            self.assertEqual((False, False), self.asked(1))

    def test_sets_where_changes_are_not_counted(self):
        """What looks at the sets alone does not put off the look at the rules."""
        self.look(None)
        for _ in range(2):
            self.clock.advance(BLIND_PAUSE / 2)
            self.looks.saw_sets()
        self.assertEqual((True, True), self.asked(None))

    def test_own_changes(self):
        """After a change there is one more look, and then none."""
        self.look(1, after=2)
        self.clock.advance(LEAST_PAUSE)
        self.assertEqual((True, True), self.asked(2))
        self.look(2)
        self.clock.advance(LEAST_PAUSE)
        self.assertEqual((False, False), self.asked(2))

    def test_changes_between_reading_and_the_end(self):
        """What others changed while nothing was changed here is noticed."""
        self.looks.ended(0.0, {4: 1}, {4: 2}, changed=False)
        self.clock.advance(LEAST_PAUSE)
        self.assertEqual((True, True), self.asked(2))

    def test_blind(self):
        """Where changes are not counted, rules are looked at now and then."""
        self.look(None)
        self.clock.advance(LEAST_PAUSE)
        self.assertEqual((True, False), self.asked(None))
        self.clock.advance(BLIND_PAUSE - LEAST_PAUSE)
        self.assertEqual((True, True), self.asked(None))

    def test_looks_that_cost_much(self):
        """They take a small share of a processor, whatever others do."""
        for generation in (1, None):
            self.look(generation, cost=2.0)
            self.clock.advance(MOST_SHARE * 2.0 - 1)
            self.assertEqual((False, False), self.asked(generation and 5))
            self.clock.advance(1)
            self.assertEqual((True, True), self.asked(generation and 5))

    def test_looks_that_cost_very_much(self):
        """No look makes the pause after it longer than a period, which is at least the least."""
        self.look(1, cost=3600.0)
        self.clock.advance(PERIOD - 1)
        self.assertEqual((False, False), self.asked(2))
        self.clock.advance(1)
        self.assertEqual((True, True), self.asked(2))
        self.looks = ProbeSchedule(self.clock, LEAST_PAUSE - 1)
        self.look(1, cost=3600.0)
        self.clock.advance(LEAST_PAUSE - 0.5)
        self.assertEqual((False, False), self.asked(2))
        self.clock.advance(0.5)
        self.assertEqual((True, True), self.asked(2))

    def test_clock_set_back(self):
        """A clock that is set back does not put off the next look."""
        self.look(1)
        self.clock.rightNow -= 3600
        self.assertEqual((True, True), self.asked(2))

    def test_overdue(self):
        """A look that does not come, though somebody has changed something, is a problem."""
        for found, now in ((1, 2), (None, None)):
            self.looks.failed()
            self.assertFalse(self.looks.is_overdue({4: now}))
            self.look(found)
            self.clock.advance(BLIND_PAUSE + OVERDUE_SECONDS - 1)
            self.assertFalse(self.looks.is_overdue({4: now}))
            self.clock.advance(1)
            self.assertTrue(self.looks.is_overdue({4: now}))
        self.look(1)
        self.clock.advance(PERIOD)
        self.assertFalse(self.looks.is_overdue({4: 1}))
        self.look(1, cost=3.0)
        self.clock.advance(PERIOD + OVERDUE_SECONDS - 1)
        self.assertFalse(self.looks.is_overdue({4: 2}))
        self.clock.advance(1)
        self.assertTrue(self.looks.is_overdue({4: 2}))


_STEPS = st.one_of(
    st.tuples(st.just("look"), st.booleans(), st.floats(0, 4000)),
    st.tuples(st.just("failed")),
    st.tuples(st.just("passes"), st.floats(0, 4000)),
    st.tuples(st.just("is set back"), st.floats(0, 4000)),
)


class AnyOrderTests(SynchronousTestCase):
    """Looks, changes, failures and steps of the clock in any order."""

    @given(st.lists(_STEPS, max_size=12), st.booleans())
    @example([("look", True, 10.0), ("is set back", 3600.0)], True)
    def test_pause_is_bounded(self, steps, counts):
        """Whatever has happened, what others change now is looked at within the pause."""
        clock = Clock()
        clock.advance(100_000)
        looks = ProbeSchedule(clock, PERIOD)
        generation = 0
        for step, *arguments in steps:
            if step == "look":
                changed, cost = arguments
                before = {4: generation if counts else None}
                generation += changed
                after = {4: generation if counts else None}
                looks.ended(cost, before, after, changed)
            elif step == "failed":
                looks.failed()
            else:
                clock.rightNow += arguments[0] if step == "passes" else -arguments[0]
        now = {4: generation + 1 if counts else None}
        waited = 0.0
        while not looks.is_due(now):
            clock.advance(ASKED_EACH)
            waited += ASKED_EACH
            self.assertLessEqual(waited, PERIOD + ASKED_EACH)
