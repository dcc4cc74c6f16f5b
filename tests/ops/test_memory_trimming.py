"""Memory that is given back to the system."""

from __future__ import annotations

import errno

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.memory_trimming import INTERVAL, MAX_FREED, GlibcHeap, MemoryTrimmer

USED = 20 * MAX_FREED
"""What the process has in memory beside what tests take, bytes."""


class FakeHeap(GlibcHeap):
    """A heap of which a test takes and frees; it gives back what is free."""

    def __init__(self) -> None:
        self.taken = 0
        self.mapped = 0
        self.most = 0
        self.times = 0
        self.problem: OSError | None = None

    def take(self, amount: int) -> None:
        """Take more, or free with a negative ``amount``."""
        self.taken += amount
        self.most = max(self.most, self.taken)
        self.mapped = max(self.mapped, self.taken)

    def free(self) -> int:
        """Count what is free, given back or not."""
        return self.most - self.taken

    def resident(self) -> int:
        """Count what is in memory."""
        if self.problem is not None:
            raise self.problem
        return USED + self.mapped

    def trim(self) -> None:
        """Return what is free."""
        self.times += 1
        self.mapped = self.taken


class MemoryTrimmerTests(SynchronousTestCase):
    """When it is given back."""

    def setUp(self) -> None:
        """Begin with an empty heap, which has been looked at once."""
        self.clock = Clock()
        self.heap = FakeHeap()
        self.service = MemoryTrimmer(self.clock, self.heap)
        self.service.startService()
        self.clock.advance(INTERVAL)
        self.heap.times = 0

    def test_what_is_freed_between_two_looks(self) -> None:
        """A flood that is over before anybody looks leaves nothing, the second one neither."""
        for _ in range(3):
            self.heap.take(6 * MAX_FREED)
            self.heap.take(-6 * MAX_FREED)
            self.clock.advance(INTERVAL)
            self.assertEqual(0, self.heap.mapped)

    def test_what_is_freed_long_after(self) -> None:
        """Nor does one that lasts, whenever it ends."""
        for looks in range(4):
            self.heap.take(6 * MAX_FREED)
            self.clock.pump([INTERVAL] * looks)
            self.heap.take(-6 * MAX_FREED)
            self.clock.advance(INTERVAL)
            self.assertEqual(0, self.heap.mapped)

    def test_what_is_freed_little_by_little(self) -> None:
        """Never more than KEPT stays at a look."""
        self.heap.take(6 * MAX_FREED)
        self.clock.advance(INTERVAL)
        for _ in range(60):
            self.heap.take(-MAX_FREED // 10)
            self.clock.advance(INTERVAL)
            self.assertLessEqual(self.heap.mapped - self.heap.taken, MAX_FREED)

    def test_what_comes_and_goes_in_small_is_left_alone(self) -> None:
        """Ordinary work takes what was just freed."""
        for _ in range(10):
            self.heap.take(MAX_FREED // 2)
            self.heap.take(-MAX_FREED // 2)
            self.clock.advance(INTERVAL)
        self.assertEqual(0, self.heap.times)

    def test_a_long_rest_costs_nothing(self) -> None:
        """After a flood nothing is given back again and again."""
        self.heap.take(6 * MAX_FREED)
        self.heap.take(-6 * MAX_FREED)
        self.clock.pump([INTERVAL] * 10)
        self.assertEqual(1, self.heap.times)

    def test_no_descriptor_to_look_by(self) -> None:
        """What cannot be looked at is given back once it can."""
        self.heap.take(6 * MAX_FREED)
        self.heap.take(-6 * MAX_FREED)
        self.heap.problem = OSError(errno.EMFILE, "Too many open files")
        self.clock.advance(INTERVAL)
        self.assertEqual(self.heap.times, 0)
        self.heap.problem = None
        self.clock.advance(INTERVAL)
        self.assertEqual((self.heap.times, self.heap.mapped), (1, 0))

    def test_the_end(self) -> None:
        """A service that has stopped looks no more."""
        self.service.stopService()
        self.assertEqual([], self.clock.getDelayedCalls())


class GlibcHeapTests(SynchronousTestCase):
    """The heap of this very process."""

    def test_pages_below_what_is_used_are_given_back(self) -> None:
        """What is free between pieces that are in use leaves the memory of the process."""
        heap = GlibcHeap()
        pieces = [bytes(3000) for _ in range(8 * MAX_FREED // 3000)]
        kept = pieces[::100]
        full = heap.resident()
        del pieces
        self.assertGreater(heap.free(), 7 * MAX_FREED)
        heap.trim()
        self.assertLess(heap.resident(), full - 6 * MAX_FREED)
        self.assertTrue(kept)
