"""When rules are read."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.looks import BLIND_PAUSE, LEAST_PAUSE, MOST_SHARE, Looks


class LooksTests(SynchronousTestCase):
    """A kernel that counts changes, and one that does not."""

    def setUp(self):
        """Begin without knowing anything."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.looks = Looks(self.clock)

    def look(self, found, after=None, seconds=0.0):
        """Look, and make changes if there is another state ``after`` it."""
        self.looks.began()
        self.clock.advance(seconds)
        self.looks.ended({4: found}, {4: found if after is None else after}, after is not None)

    def asked(self, generation):
        """Say whether rules have to be read, and whether there should be a sync for that."""
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
        """Rules that nobody has changed are not read; sets are looked at all the same."""
        self.look(1)
        self.clock.advance(BLIND_PAUSE)
        self.assertEqual((False, True), self.asked(1))

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
        self.looks.began()
        self.looks.ended({4: 1}, {4: 2}, changed=False)
        self.clock.advance(LEAST_PAUSE)
        self.assertEqual((True, True), self.asked(2))

    def test_blind(self):
        """Where changes are not counted, rules are looked at now and then."""
        self.look(None)
        self.clock.advance(LEAST_PAUSE)
        self.assertEqual((True, False), self.asked(None))
        self.clock.advance(BLIND_PAUSE - LEAST_PAUSE)
        self.assertEqual((True, True), self.asked(None))

    def test_looks_that_take_long(self):
        """They take a small share of the time, whatever others do."""
        for generation in (1, None):
            self.look(generation, seconds=2.0)
            self.clock.advance(MOST_SHARE * 2.0 - 1)
            self.assertEqual((False, False), self.asked(generation and 5))
            self.clock.advance(1)
            self.assertEqual((True, True), self.asked(generation and 5))
