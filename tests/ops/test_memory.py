"""The return of free memory to the system, and objects that are frozen."""

from __future__ import annotations

import errno
import gc

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import memory
from yurttunnel.ops.memory import (
    INTERVAL,
    MAX_FREED,
    MAX_GROWTH,
    MIN_COLLECTION_SECONDS,
    GCFreezer,
    GlibcHeap,
    MemoryTrimmer,
)

USED = 20 * MAX_FREED
"""The resident memory of the process beside what the tests allocate, in bytes."""


class FakeHeap(GlibcHeap):
    """A fake heap; tests allocate and free, and trimming returns free memory to the system."""

    def __init__(self) -> None:
        self.allocated = 0
        self.mapped = 0
        self.peak = 0
        self.times = 0
        self.problem: OSError | None = None

    def allocate(self, amount: int) -> None:
        """Allocate ``amount`` bytes, or free them if it is negative."""
        self.allocated += amount
        self.peak = max(self.peak, self.allocated)
        self.mapped = max(self.mapped, self.allocated)

    def free(self) -> int:
        """Return the number of free bytes, returned or not."""
        return self.peak - self.allocated

    def resident(self) -> int:
        """Return the number of resident bytes."""
        if self.problem is not None:
            raise self.problem
        return USED + self.mapped

    def trim(self) -> None:
        """Return all free memory to the system."""
        self.times += 1
        self.mapped = self.allocated


class MemoryTrimmerTests(SynchronousTestCase):
    """When free memory is returned."""

    def setUp(self) -> None:
        """Start with an empty heap that has been checked once."""
        self.clock = Clock()
        self.heap = FakeHeap()
        self.service = MemoryTrimmer(self.clock, self.heap)
        self.service.startService()
        self.clock.advance(INTERVAL)
        self.heap.times = 0

    def test_freed_between_checks(self) -> None:
        """Memory that was allocated and freed between two checks is returned, each time."""
        for _ in range(3):
            self.heap.allocate(6 * MAX_FREED)
            self.heap.allocate(-6 * MAX_FREED)
            self.clock.advance(INTERVAL)
            self.assertEqual(0, self.heap.mapped)

    def test_freed_after_several_checks(self) -> None:
        """Memory that was in use over several checks is returned once it is free."""
        for checks in range(4):
            self.heap.allocate(6 * MAX_FREED)
            self.clock.pump([INTERVAL] * checks)
            self.heap.allocate(-6 * MAX_FREED)
            self.clock.advance(INTERVAL)
            self.assertEqual(0, self.heap.mapped)

    def test_freed_gradually(self) -> None:
        """Memory that is freed gradually is returned whenever more than MAX_FREED is free."""
        self.heap.allocate(6 * MAX_FREED)
        self.clock.advance(INTERVAL)
        for _ in range(60):
            self.heap.allocate(-MAX_FREED // 10)
            self.clock.advance(INTERVAL)
            self.assertLessEqual(self.heap.mapped - self.heap.allocated, MAX_FREED)

    def test_small_reused_amounts(self) -> None:
        """Small amounts that are freed and reused are not returned."""
        for _ in range(10):
            self.heap.allocate(MAX_FREED // 2)
            self.heap.allocate(-MAX_FREED // 2)
            self.clock.advance(INTERVAL)
        self.assertEqual(0, self.heap.times)

    def test_a_long_rest_costs_nothing(self) -> None:
        """After one trim an idle process is not trimmed again."""
        self.heap.allocate(6 * MAX_FREED)
        self.heap.allocate(-6 * MAX_FREED)
        self.clock.pump([INTERVAL] * 10)
        self.assertEqual(1, self.heap.times)

    def test_no_descriptor_for_the_check(self) -> None:
        """When the heap cannot be measured, memory is returned at the next successful check."""
        self.heap.allocate(6 * MAX_FREED)
        self.heap.allocate(-6 * MAX_FREED)
        self.heap.problem = OSError(errno.EMFILE, "Too many open files")
        self.clock.advance(INTERVAL)
        self.assertEqual(self.heap.times, 0)
        self.heap.problem = None
        self.clock.advance(INTERVAL)
        self.assertEqual((self.heap.times, self.heap.mapped), (1, 0))

    def test_the_end(self) -> None:
        """A stopped service leaves no timer."""
        self.service.stopService()
        self.assertEqual([], self.clock.getDelayedCalls())


class GlibcHeapTests(SynchronousTestCase):
    """The heap of the test process."""

    def test_free_pages_between_used_ones(self) -> None:
        """Free pages between used ones leave the resident memory."""
        heap = GlibcHeap()
        pieces = [bytes(3000) for _ in range(8 * MAX_FREED // 3000)]
        retained = pieces[::100]
        full = heap.resident()
        del pieces
        self.assertGreater(heap.free(), 7 * MAX_FREED)
        heap.trim()
        self.assertLess(heap.resident(), full - 6 * MAX_FREED)
        self.assertTrue(retained)


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
        self.scanned = []

    def collect(self, generation: int, seconds: float) -> None:
        """Collect, which takes ``seconds``."""
        self.scanned.append(self.alive - self.frozen)
        for phase in ("start", "stop"):
            for callback in tuple(self.callbacks):
                callback(phase, {"generation": generation, "collected": 0, "uncollectable": 0})
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
        self.patch(memory, "gc", self.collector)
        self.service = GCFreezer(lambda: self.collector.now)
        self.service.startService()

    def collect(self, seconds: float = MIN_COLLECTION_SECONDS + 0.001, generation: int = 2) -> int:
        """Collect; return the number of objects that were examined."""
        self.collector.collect(generation, seconds)
        return self.collector.scanned[-1]

    def test_slow_full_collection(self) -> None:
        """The objects that survive a slow full collection are skipped by the next one."""
        self.assertEqual([self.collect(), self.collect()], [ALIVE, 0])

    def test_full_collection_that_is_short(self) -> None:
        """A fast full collection freezes nothing."""
        self.assertEqual(
            [self.collect(MIN_COLLECTION_SECONDS), self.collect(MIN_COLLECTION_SECONDS)],
            [ALIVE, ALIVE],
        )

    def test_young_collection(self) -> None:
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
        callback = self.collector.callbacks[0]
        callback("start", {"generation": 2})
        self.service.stopService()
        self.collector.now += 1.0
        callback("stop", {"generation": 2})
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
