"""The queue of writes, and its limit."""

from __future__ import annotations

import time
from functools import partial

from twisted.trial.unittest import SynchronousTestCase

from tests.hub.cache.caches import NODES, POD, PODS, item
from yurttunnel.hub.cache import queue
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.queue import WriteQueue
from yurttunnel.hub.cache.writes import (
    MAX_BATCH_SIZE,
    OVERHEAD,
    Change,
    Changes,
    Key,
    MarkIncomplete,
    ScopeExit,
    Statements,
)


def make_queue(most: int, on_drop=lambda number: None) -> WriteQueue:
    """Create a queue with that many bytes."""
    return WriteQueue(most, lambda seconds: None, on_drop, lambda client: True)


class BoundTests(SynchronousTestCase):
    """A queue with room for four writes without bodies."""

    def setUp(self) -> None:
        """Create it."""
        self.dropped: list[int] = []
        self.queue = make_queue(4 * OVERHEAD, self.dropped.append)

    def mark_lost(self, *collections: Collection) -> None:
        """Cause changes to be dropped for lack of room."""
        change = Change(1, POD, item("a", body=b"x" * 4 * OVERHEAD))
        for each in collections:
            self.queue.change(Key(each, "n", "a"), change)

    def write(self) -> None:
        """Do the queued writes."""
        self.queue.take()
        self.queue.done()

    def test_queue_limit(self) -> None:
        """The queue can be filled to the last byte; one more write drops the oldest."""
        for _ in range(4):
            self.queue.put(Statements())
        self.assertEqual([], self.dropped)
        self.queue.put(Statements())
        self.assertEqual([1], self.dropped)
        self.assertEqual(4, len(self.queue.take()))

    def test_limits_of_deferred_calls(self) -> None:
        """Deferred calls that are too many, or too large together, are done at once."""
        called: list[int] = []
        for number in range(1, queue.MAX_DEFERRED):
            self.queue.defer(partial(called.append, number), 1)
        self.assertEqual(([], True), (called, self.queue.is_busy))
        self.queue.defer(partial(called.append, 0), 1)
        self.assertEqual(([*range(1, queue.MAX_DEFERRED), 0], False), (called, self.queue.is_busy))
        called.clear()
        self.queue.defer(partial(called.append, 1), queue.MAX_DEFERRED_SIZE - 1)
        self.assertEqual([], called)
        self.queue.defer(partial(called.append, 2), 1)
        self.assertEqual([1, 2], called)

    def test_finding_the_oldest_of_an_account(self) -> None:
        """A write that is dropped for its account is found without a look at those of others."""

        class Watched(Statements):
            looks = 0

            def __getattribute__(self, name: str) -> object:
                Watched.looks += 1
                return super().__getattribute__(name)

        waiting = make_queue(400 * OVERHEAD, self.dropped.append)
        for _ in range(200):
            waiting.put(Watched(), "other")
        Watched.looks = 0
        for _ in range(101):
            waiting.put(Statements(), "account")
        self.assertEqual([1], self.dropped)
        self.assertEqual(0, Watched.looks)

    def test_the_older_of_two_changes(self) -> None:
        """No more changes of a batch are dropped than necessary."""
        for name, size in (("a", 2 * OVERHEAD), ("b", OVERHEAD)):
            change = Change(1, POD, item(name, body=b"x" * size))
            self.queue.change(Key(PODS, "n", name), change)
        self.assertEqual([1], self.dropped)
        [_, changes] = self.queue.take()
        self.assertEqual([Key(PODS, "n", "b")], list(changes.by_key))

    def test_incomplete_collections(self) -> None:
        """The collection of a dropped change is incomplete until this is written."""
        self.mark_lost(PODS)
        self.assertEqual([1], self.dropped)
        self.assertTrue(self.queue.is_incomplete(PODS))
        self.write()
        self.assertFalse(self.queue.is_incomplete(PODS))

    def test_a_collection_that_becomes_incomplete_during_a_write(self) -> None:
        """A change that is dropped meanwhile is newer than a list in the same write."""
        self.mark_lost(PODS)
        self.queue.take()
        self.mark_lost(PODS)
        self.queue.done()
        self.assertTrue(self.queue.is_incomplete(PODS))
        self.write()
        self.assertFalse(self.queue.is_incomplete(PODS))
        self.assertFalse(self.queue.is_busy)

    def test_more_incomplete_collections_during_a_write(self) -> None:
        """If too many collections are incomplete to be remembered, all count as incomplete."""
        self.patch(queue, "MAX_INCOMPLETE", 1)
        self.mark_lost(PODS, NODES)
        self.queue.take()
        self.mark_lost(PODS, NODES)
        self.queue.done()
        self.assertTrue(self.queue.is_incomplete(PODS))
        self.write()
        self.assertFalse(self.queue.is_incomplete(PODS))
        self.assertFalse(self.queue.is_busy)

    def test_more_incomplete_collections_at_a_retry(self) -> None:
        """Changes that are dropped during a failing write are recorded behind it, once."""
        self.queue.put(Statements())
        for most in (10, 0):
            self.patch(queue, "MAX_INCOMPLETE", most)
            for _ in range(3):
                self.queue.take()
                self.mark_lost(PODS)
                self.queue.put_back()
            [first, last] = self.queue.take()
            self.assertIsInstance(first, Statements)
            self.assertIsInstance(last, MarkIncomplete)
            self.assertEqual((most > 0, most == 0), (PODS in last.collections, bool(last.of_all)))
            self.queue.put_back()

    def test_dropped_before_a_late_list_is_retried(self) -> None:
        """Data that is newer than a list, and dropped, stays incomplete after the list."""
        self.patch(queue, "MAX_PENDING", 0)
        place, late = self.queue.reserve(), Statements()
        self.queue.change(Key(PODS, "n", "a"), Change(1, POD, item("a")))
        self.queue.fulfil(place, lambda: self.queue.put_at_once(late), 0)
        self.assertEqual(3, len(self.queue.take()))
        self.queue.put_back()
        self.queue.change(Key(NODES, "n", "a"), Change(1, POD, item("a", body=b"x" * 600)))
        self.assertEqual([1], self.dropped)
        first, second, behind, _ = self.queue.take()
        self.assertIs(late, second)
        for each in (first, behind):
            self.assertEqual({PODS}, each.collections)

    def test_what_is_seen(self) -> None:
        """Reported versions take memory for each version at which a watch began."""
        self.queue.advance(Scope(PODS), 1, 2)
        one = self.queue.size
        self.queue.advance(Scope(PODS), 1, 3)
        self.assertEqual(one, self.queue.size)
        self.queue.advance(Scope(PODS), "x" * 100, 3)
        self.assertEqual(2 * one + 99, self.queue.size)

    def test_reads_while_many_writes_wait(self) -> None:
        """A read does not search all the writes, of which a slow disk leaves very many."""
        waiting = make_queue(100_000 * OVERHEAD)
        for _ in range(100_000):
            waiting.put(Statements())
        before = time.process_time()
        for _ in range(100):
            self.assertFalse(waiting.is_incomplete(PODS))
            self.assertNoResult(waiting.barrier())
        self.assertLess(time.process_time() - before, 0.5)

    def test_barrier_after_lists_with_too_many_later_writes(self) -> None:
        """A wait for lists that are being parsed goes on if later writes overtake them.

        This applies both to too many later writes and to too large ones.
        """
        self.patch(queue, "MAX_PENDING", 2)
        for lists, size in ((3, 0), (1, 5 * OVERHEAD)):
            places = [self.queue.reserve() for _ in range(lists)]
            barrier = self.queue.barrier()
            self.queue.change(Key(PODS, "n", "a"), Change(1, POD, item("a", body=b"x" * size)))
            self.write()
            for place in places:
                self.assertNoResult(barrier)
                self.queue.fulfil(place, lambda: None, 0)
            self.assertIsNone(self.successResultOf(barrier))
            self.assertFalse(self.queue.is_busy)


class LeavingTests(SynchronousTestCase):
    """Objects that left a part, and may still exist."""

    def test_noted_with_its_removal(self) -> None:
        """The record is in the transaction of the removal, also if earlier changes include that."""
        waiting = make_queue(100 * MAX_BATCH_SIZE)
        key, part = Key(PODS, "n", "a"), Scope(PODS, "", "app=web")
        waiting.change(key, Change(1, POD, item("a", 1, body=b"x" * MAX_BATCH_SIZE)))
        waiting.change(Key(PODS, "n", "b"), Change(2, POD, item("b", 2)))
        waiting.change(key, Change(3, scope_exit=ScopeExit(part, item("a", 3))))
        [noted] = [write for write in waiting.take() if isinstance(write, Changes) and write.exits]
        self.assertIsNone(noted.by_key[key].item)
        self.assertEqual([part], list(noted.exits))
