"""Freezing of long-lived objects, which the garbage collector then skips."""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import gc_freezing
from yurttunnel.ops.gc_freezing import MAX_GROWTH, MIN_COLLECTION_SECONDS, GCFreezer

ALIVE = 1000
"""The initial number of objects."""


class FakeCollector:
    """A fake collector with a settable number of live objects and duration.

    It offers no count of frozen objects, since counting can take longer than a collection.
    """

    def __init__(self) -> None:
        self.callbacks = []
        self.now = 0.0
        self.alive = ALIVE
        self.frozen = 0
        self.looked_at = []

    def collect(self, generation: int, seconds: float) -> None:
        """Collect, which takes ``seconds``."""
        self.looked_at.append(self.alive - self.frozen)
        for phase in ("start", "stop"):
            for told in tuple(self.callbacks):
                told(phase, {"generation": generation, "collected": 0, "uncollectable": 0})
            self.now += seconds

    def freeze(self) -> None:
        """Freeze all live objects."""
        self.frozen = self.alive

    def unfreeze(self) -> None:
        """Unfreeze all objects."""
        self.frozen = 0

    def get_objects(self) -> range:
        """Return the live objects that are not frozen."""
        return range(self.alive - self.frozen)


class LongLivedTests(SynchronousTestCase):
    """Which objects are frozen, and for how long."""

    def setUp(self) -> None:
        """Start the service on a collector without frozen objects."""
        self.collector = FakeCollector()
        self.patch(gc_freezing, "gc", self.collector)
        self.service = GCFreezer(lambda: self.collector.now)
        self.service.startService()

    def collect(self, seconds: float = MIN_COLLECTION_SECONDS + 0.001, generation: int = 2) -> int:
        """Collect; return the number of objects that were examined."""
        self.collector.collect(generation, seconds)
        return self.collector.looked_at[-1]

    def test_full_collection_that_takes_long(self) -> None:
        """The objects that survive a slow full collection are skipped by the next one."""
        self.assertEqual([self.collect(), self.collect()], [ALIVE, 0])

    def test_full_collection_that_is_short(self) -> None:
        """A fast full collection freezes nothing."""
        self.assertEqual(
            [self.collect(MIN_COLLECTION_SECONDS), self.collect(MIN_COLLECTION_SECONDS)],
            [ALIVE, ALIVE],
        )

    def test_collection_of_what_is_new(self) -> None:
        """A collection of younger generations freezes nothing, however long it takes."""
        self.collect(generation=0)
        self.collect(generation=1)
        self.assertEqual(self.collect(MIN_COLLECTION_SECONDS), ALIVE)

    def test_growth(self) -> None:
        """When frozen objects have grown too much, all objects are examined and frozen again."""
        self.collect()
        self.collector.alive = MAX_GROWTH * ALIVE
        self.assertEqual([self.collect(), self.collect()], [ALIVE, 0])
        self.collector.alive += 1
        self.assertEqual([self.collect(), self.collect()], [1, MAX_GROWTH * ALIVE + 1])
        self.collector.alive *= MAX_GROWTH
        self.assertEqual([self.collect(), self.collect()], [MAX_GROWTH * ALIVE + 1, 0])

    def test_several_in_a_process(self) -> None:
        """Only the first of several services freezes; when it stops, the next one takes over."""
        another = GCFreezer(lambda: self.collector.now)
        another.startService()
        self.test_growth()
        self.service.stopService()
        self.collector.alive = ALIVE
        self.assertEqual([self.collect(), self.collect()], [ALIVE, 0])
        another.stopService()
        self.assertEqual(self.collect(), ALIVE)

    def test_stop(self) -> None:
        """Stopping unfreezes all objects, and nothing is frozen afterwards."""
        self.collect()
        self.service.stopService()
        self.assertEqual([self.collect(), self.collect()], [ALIVE, ALIVE])
        self.assertEqual(self.collector.callbacks, [])

    def test_stop_twice(self) -> None:
        """Stopping is idempotent, and possible without a start."""
        for _ in range(2):
            self.service.stopService()
        self.assertEqual(self.collector.callbacks, [])

    def test_stop_amid_a_collection(self) -> None:
        """A collection that ends after the stop freezes nothing."""
        told = self.collector.callbacks[0]
        told("start", {"generation": 2})
        self.service.stopService()
        self.collector.now += 1.0
        told("stop", {"generation": 2})
        self.assertEqual(self.collector.frozen, 0)


class CollectorTests(SynchronousTestCase):
    """The service with the real collector."""

    def test_full_collection(self) -> None:
        """A full collection is observed, and its survivors are frozen."""
        before, times = gc.get_freeze_count(), iter((0.0, 1.0))
        service = GCFreezer(lambda: next(times))
        service.startService()
        gc.collect()
        self.assertGreater(gc.get_freeze_count(), before)
        service.stopService()
        self.assertEqual(gc.get_freeze_count(), 0)
