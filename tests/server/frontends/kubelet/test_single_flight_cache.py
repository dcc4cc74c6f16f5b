"""Answers that are kept, and asked for once."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server.frontends.kubelet.single_flight_cache import (
    LookupCounters,
    SingleFlightCache,
)


class SingleFlightCacheTests(SynchronousTestCase):
    """What is asked, and what is known."""

    def setUp(self):
        """Make room for two answers of either kind."""
        self.clock = Clock()
        self.counters = LookupCounters()
        self.answers = SingleFlightCache(self.clock, self.counters, max_entries=2)
        self.asked = []

    def get(self, key, answer="yes", seconds=10):
        """Ask for something that is answered at once."""

        async def ask():
            self.asked.append(key)
            return answer, seconds

        return self.successResultOf(self.answers.get(key, ask))

    def get_late(self, key):
        """Ask for something; gives what waits for it, and what answers it."""
        answer = Deferred()

        async def ask():
            self.asked.append(key)
            return await answer

        return self.answers.get(key, ask), answer

    def counts(self, **expected):
        """Assert what was counted."""
        self.assertEqual(LookupCounters(**expected), self.counters)

    def test_kept(self):
        """An answer is given again for its time, and not longer."""
        self.assertEqual("yes", self.get(b"a"))
        self.clock.advance(9.9)
        self.assertEqual("yes", self.get(b"a", "other"))
        self.assertEqual([b"a"], self.asked)
        self.clock.advance(0.1)
        self.assertEqual("other", self.get(b"a", "other"))
        self.counts(asked=2, kept=1)

    def test_changed(self):
        """An answer that was no and is yes, or the other way round, is the newest one."""
        self.assertIsNone(self.get(b"a", None, 10))
        self.clock.advance(10)
        self.assertEqual("yes", self.get(b"a", "yes", 10))
        self.clock.advance(10)
        self.assertIsNone(self.get(b"a", None, 10))
        self.assertIsNone(self.get(b"a"))

    def test_bounded(self):
        """When there are too many, those that were used least recently go."""
        self.get(b"a")
        self.get(b"b")
        self.get(b"a")
        self.get(b"c")
        self.asked.clear()
        for key in (b"a", b"c", b"b"):
            self.get(key)
        self.assertEqual([b"b"], self.asked)

    def test_rooms(self):
        """Much that is answered by no displaces nothing that is answered by yes."""
        self.get(b"a")
        for number in range(100):
            self.get(b"%d" % number, None)
        self.asked.clear()
        self.get(b"a")
        self.get(b"99", None)
        self.assertEqual([], self.asked)
        self.get(b"97", None)
        self.assertEqual([b"97"], self.asked)

    def test_shared(self):
        """However many wait for the same, it is asked once."""
        first, answer = self.get_late(b"a")
        others = [self.get_late(b"a")[0] for _ in range(3)]
        self.assertEqual([b"a"], self.asked)
        self.assertNoResult(first)
        answer.callback(("yes", 10))
        for each in (first, *others):
            self.assertEqual("yes", self.successResultOf(each))
        self.counts(asked=1, shared=3)

    def test_failed(self):
        """A failure is told to all who wait, and the next one asks again."""
        first, answer = self.get_late(b"a")
        second, _ = self.get_late(b"a")
        answer.errback(RuntimeError("no"))
        self.failureResultOf(first, RuntimeError)
        self.failureResultOf(second, RuntimeError)
        self.assertEqual("yes", self.get(b"a"))
        self.assertEqual([b"a", b"a"], self.asked)

    def test_left(self):
        """Who does not wait any longer does not end it for others."""
        first, answer = self.get_late(b"a")
        second, _ = self.get_late(b"a")
        first.cancel()
        self.failureResultOf(first, CancelledError)
        answer.callback(("yes", 10))
        self.assertEqual("yes", self.successResultOf(second))

    def test_stop(self):
        """When it is stopped, all who wait are told, and what asks is ended."""
        first, answer = self.get_late(b"a")
        second, _ = self.get_late(b"b")
        self.successResultOf(self.answers.stop())
        self.failureResultOf(first, CancelledError)
        self.failureResultOf(second, CancelledError)
        self.assertTrue(answer.called)
        self.successResultOf(self.answers.stop())
