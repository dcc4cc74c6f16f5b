"""The return of free memory to the system."""

from __future__ import annotations

import errno

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.memory_trimming import INTERVAL, MAX_FREED, GlibcHeap, MemoryTrimmer

USED = 20 * MAX_FREED
"""The resident memory of the process beside what the tests allocate, in bytes."""


class FakeHeap(GlibcHeap):
    """A fake heap; tests allocate and free, and trimming returns free memory to the system."""

    def __init__(self) -> None:
        self.taken = 0
        self.mapped = 0
        self.most = 0
        self.times = 0
        self.problem: OSError | None = None

    def take(self, amount: int) -> None:
        """Allocate ``amount`` bytes, or free them if it is negative."""
        self.taken += amount
        self.most = max(self.most, self.taken)
        self.mapped = max(self.mapped, self.taken)

    def free(self) -> int:
        """Return the number of free bytes, returned or not."""
        return self.most - self.taken

    def resident(self) -> int:
        """Return the number of resident bytes."""
        if self.problem is not None:
            raise self.problem
        return USED + self.mapped

    def trim(self) -> None:
        """Return all free memory to the system."""
        self.times += 1
        self.mapped = self.taken


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

    def test_what_is_freed_between_two_looks(self) -> None:
        """Memory that was allocated and freed between two checks is returned, each time."""
        for _ in range(3):
            self.heap.take(6 * MAX_FREED)
            self.heap.take(-6 * MAX_FREED)
            self.clock.advance(INTERVAL)
            self.assertEqual(0, self.heap.mapped)

    def test_what_is_freed_long_after(self) -> None:
        """Memory that was in use over several checks is returned once it is free."""
        for looks in range(4):
            self.heap.take(6 * MAX_FREED)
            self.clock.pump([INTERVAL] * looks)
            self.heap.take(-6 * MAX_FREED)
            self.clock.advance(INTERVAL)
            self.assertEqual(0, self.heap.mapped)

    def test_what_is_freed_little_by_little(self) -> None:
        """Memory that is freed gradually is returned whenever more than MAX_FREED is free."""
        self.heap.take(6 * MAX_FREED)
        self.clock.advance(INTERVAL)
        for _ in range(60):
            self.heap.take(-MAX_FREED // 10)
            self.clock.advance(INTERVAL)
            self.assertLessEqual(self.heap.mapped - self.heap.taken, MAX_FREED)

    def test_what_comes_and_goes_in_small_is_left_alone(self) -> None:
        """Small amounts that are freed and reused are not returned."""
        for _ in range(10):
            self.heap.take(MAX_FREED // 2)
            self.heap.take(-MAX_FREED // 2)
            self.clock.advance(INTERVAL)
        self.assertEqual(0, self.heap.times)

    def test_a_long_rest_costs_nothing(self) -> None:
        """After one trim an idle process is not trimmed again."""
        self.heap.take(6 * MAX_FREED)
        self.heap.take(-6 * MAX_FREED)
        self.clock.pump([INTERVAL] * 10)
        self.assertEqual(1, self.heap.times)

    def test_no_descriptor_to_look_by(self) -> None:
        """When the heap cannot be measured, memory is returned at the next successful check."""
        self.heap.take(6 * MAX_FREED)
        self.heap.take(-6 * MAX_FREED)
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

    def test_pages_below_what_is_used_are_given_back(self) -> None:
        """Free pages between used ones leave the resident memory."""
        heap = GlibcHeap()
        pieces = [bytes(3000) for _ in range(8 * MAX_FREED // 3000)]
        kept = pieces[::100]
        full = heap.resident()
        del pieces
        self.assertGreater(heap.free(), 7 * MAX_FREED)
        heap.trim()
        self.assertLess(heap.resident(), full - 6 * MAX_FREED)
        self.assertTrue(kept)
