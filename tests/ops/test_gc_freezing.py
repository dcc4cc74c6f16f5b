"""Objects that the collector of garbage sets aside."""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import gc_freezing
from yurttunnel.ops.gc_freezing import MAX_GROWTH, MIN_COLLECTION_SECONDS, GCFreezer

ALIVE = 1000
"""Objects that there are at first."""


class FakeCollector:
    """A collector that is told how many objects are alive, and how long it takes.

    It does not count what is set aside, which would take longer than many a collection.
    """

    def __init__(self) -> None:
        self.callbacks = []
        self.now = 0.0
        self.alive = ALIVE
        self.frozen = 0
        self.looked_at = []

    def collect(self, generation: int, seconds: float) -> None:
        """Collect; it takes so many seconds."""
        self.looked_at.append(self.alive - self.frozen)
        for phase in ("start", "stop"):
            for told in tuple(self.callbacks):
                told(phase, {"generation": generation, "collected": 0, "uncollectable": 0})
            self.now += seconds

    def freeze(self) -> None:
        """Set aside all that is alive."""
        self.frozen = self.alive

    def unfreeze(self) -> None:
        """Set nothing aside."""
        self.frozen = 0

    def get_objects(self) -> range:
        """Return what is alive and not set aside."""
        return range(self.alive - self.frozen)


class LongLivedTests(SynchronousTestCase):
    """What is set aside, and for how long."""

    def setUp(self) -> None:
        """Begin with a collector that has set nothing aside."""
        self.collector = FakeCollector()
        self.patch(gc_freezing, "gc", self.collector)
        self.service = GCFreezer(lambda: self.collector.now)
        self.service.startService()

    def collect(self, seconds: float = MIN_COLLECTION_SECONDS + 0.001, generation: int = 2) -> int:
        """Collect; return how many objects were looked at."""
        self.collector.collect(generation, seconds)
        return self.collector.looked_at[-1]

    def test_full_collection_that_takes_long(self) -> None:
        """What a full collection has left that took long is not looked at by the next one."""
        self.assertEqual([self.collect(), self.collect()], [ALIVE, 0])

    def test_full_collection_that_is_short(self) -> None:
        """What is looked at quickly is looked at each time."""
        self.assertEqual(
            [self.collect(MIN_COLLECTION_SECONDS), self.collect(MIN_COLLECTION_SECONDS)],
            [ALIVE, ALIVE],
        )

    def test_collection_of_what_is_new(self) -> None:
        """A collection of what is new alone sets nothing aside, however long it takes."""
        self.collect(generation=0)
        self.collect(generation=1)
        self.assertEqual(self.collect(MIN_COLLECTION_SECONDS), ALIVE)

    def test_growth(self) -> None:
        """When much more is set aside than there was, all is looked at once, and set aside."""
        self.collect()
        self.collector.alive = MAX_GROWTH * ALIVE
        self.assertEqual([self.collect(), self.collect()], [ALIVE, 0])
        self.collector.alive += 1
        self.assertEqual([self.collect(), self.collect()], [1, MAX_GROWTH * ALIVE + 1])
        self.collector.alive *= MAX_GROWTH
        self.assertEqual([self.collect(), self.collect()], [MAX_GROWTH * ALIVE + 1, 0])

    def test_several_in_a_process(self) -> None:
        """The first one sets aside, and has all looked at; when it stops, the next one does."""
        another = GCFreezer(lambda: self.collector.now)
        another.startService()
        self.test_growth()
        self.service.stopService()
        self.collector.alive = ALIVE
        self.assertEqual([self.collect(), self.collect()], [ALIVE, 0])
        another.stopService()
        self.assertEqual(self.collect(), ALIVE)

    def test_stop(self) -> None:
        """At its stop nothing is set aside, and nothing is any more."""
        self.collect()
        self.service.stopService()
        self.assertEqual([self.collect(), self.collect()], [ALIVE, ALIVE])
        self.assertEqual(self.collector.callbacks, [])

    def test_stop_twice(self) -> None:
        """It may be stopped again, and without having begun, as a program that cannot begin."""
        for _ in range(2):
            self.service.stopService()
        self.assertEqual(self.collector.callbacks, [])

    def test_stop_amid_a_collection(self) -> None:
        """A collection that ends after the stop sets nothing aside."""
        told = self.collector.callbacks[0]
        told("start", {"generation": 2})
        self.service.stopService()
        self.collector.now += 1.0
        told("stop", {"generation": 2})
        self.assertEqual(self.collector.frozen, 0)


class CollectorTests(SynchronousTestCase):
    """With the collector of this process."""

    def test_full_collection(self) -> None:
        """It tells of its full collections, and sets aside what they have left."""
        before, times = gc.get_freeze_count(), iter((0.0, 1.0))
        service = GCFreezer(lambda: next(times))
        service.startService()
        gc.collect()
        self.assertGreater(gc.get_freeze_count(), before)
        service.stopService()
        self.assertEqual(gc.get_freeze_count(), 0)
