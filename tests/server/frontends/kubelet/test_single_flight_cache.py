"""A cache whose concurrent lookups share one request."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server.frontends.kubelet.single_flight_cache import (
    LookupCounters,
    SingleFlightCache,
)


class SingleFlightCacheTests(SynchronousTestCase):
    """Requests and cached results."""

    def setUp(self):
        """Set a limit of two results of either kind."""
        self.clock = Clock()
        self.counters = LookupCounters()
        self.answers = SingleFlightCache(self.clock, self.counters, max_entries=2)
        self.misses = []

    def get(self, key, answer="yes", seconds=10):
        """Look a key up, with an immediate result."""

        async def look_up():
            self.misses.append(key)
            return answer, seconds

        return self.successResultOf(self.answers.get(key, look_up))

    def get_late(self, key):
        """Look a key up; return the waiter, and the ``Deferred`` of its request."""
        answer = Deferred()

        async def look_up():
            self.misses.append(key)
            return await answer

        return self.answers.get(key, look_up), answer

    def counts(self, **expected):
        """Assert the counts."""
        self.assertEqual(LookupCounters(**expected), self.counters)

    def test_cached(self):
        """A result is reused for its lifetime, and not longer."""
        self.assertEqual("yes", self.get(b"a"))
        self.clock.advance(9.9)
        self.assertEqual("yes", self.get(b"a", "other"))
        self.assertEqual([b"a"], self.misses)
        self.clock.advance(0.1)
        self.assertEqual("other", self.get(b"a", "other"))
        self.counts(misses=2, hits=1)

    def test_changed(self):
        """A result that changes from no to yes, or back, is the latest one."""
        self.assertIsNone(self.get(b"a", None, 10))
        self.clock.advance(10)
        self.assertEqual("yes", self.get(b"a", "yes", 10))
        self.clock.advance(10)
        self.assertIsNone(self.get(b"a", None, 10))
        self.assertIsNone(self.get(b"a"))

    def test_bounded(self):
        """Above the limit the least recently used results are evicted."""
        self.get(b"a")
        self.get(b"b")
        self.get(b"a")
        self.get(b"c")
        self.misses.clear()
        for key in (b"a", b"c", b"b"):
            self.get(key)
        self.assertEqual([b"b"], self.misses)

    def test_rooms(self):
        """Many negative results evict no positive ones."""
        self.get(b"a")
        for number in range(100):
            self.get(b"%d" % number, None)
        self.misses.clear()
        self.get(b"a")
        self.get(b"99", None)
        self.assertEqual([], self.misses)
        self.get(b"97", None)
        self.assertEqual([b"97"], self.misses)

    def test_shared(self):
        """Concurrent lookups of one key share one request."""
        first, answer = self.get_late(b"a")
        others = [self.get_late(b"a")[0] for _ in range(3)]
        self.assertEqual([b"a"], self.misses)
        self.assertNoResult(first)
        answer.callback(("yes", 10))
        for each in (first, *others):
            self.assertEqual("yes", self.successResultOf(each))
        self.counts(misses=1, shared=3)

    def test_failed(self):
        """A failure is reported to all waiters, and the next lookup makes a new request."""
        first, answer = self.get_late(b"a")
        second, _ = self.get_late(b"a")
        answer.errback(RuntimeError("no"))
        self.failureResultOf(first, RuntimeError)
        self.failureResultOf(second, RuntimeError)
        self.assertEqual("yes", self.get(b"a"))
        self.assertEqual([b"a", b"a"], self.misses)

    def test_left(self):
        """Cancelling one waiter does not affect the others."""
        first, answer = self.get_late(b"a")
        second, _ = self.get_late(b"a")
        first.cancel()
        self.failureResultOf(first, CancelledError)
        answer.callback(("yes", 10))
        self.assertEqual("yes", self.successResultOf(second))

    def test_stop(self):
        """Stopping fails all waiters, and cancels the requests."""
        first, answer = self.get_late(b"a")
        second, _ = self.get_late(b"b")
        self.successResultOf(self.answers.stop())
        self.failureResultOf(first, CancelledError)
        self.failureResultOf(second, CancelledError)
        self.assertTrue(answer.called)
        self.successResultOf(self.answers.stop())
