"""Slow and hanging disks do not affect online clients."""

from __future__ import annotations

import sqlite3

from tests.hub.cache.caches import (
    ALL,
    NODES,
    POD,
    PODS,
    HeldJobs,
    item,
    report_list,
)
from tests.hub.cache.logged_cache import (
    BODY,
    FailingConnection,
    LoggedCacheTestCase,
    connect_failing,
)
from yurttunnel.hub.cache import queue
from yurttunnel.hub.cache.cached_list import READ_TIMEOUT
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.store import MAX_CONCURRENT_READS
from yurttunnel.hub.cache.writer import BARRIER_SECONDS, SLOW_SECONDS
from yurttunnel.hub.media.interfaces import ListMeta


class SlowDiskTests(LoggedCacheTestCase):
    """A disk with a slow fsync(2)."""

    def setUp(self) -> None:
        """Create a cache whose writer can be held."""
        self.writer = HeldJobs()
        super().setUp()
        report_list(self.cache, [item("a")], 5)
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True
        self.addCleanup(self.writer.release)

    def start(self, **options) -> None:
        """Start another cache."""
        super().start(writer=self.writer, **options)

    def test_reading(self) -> None:
        """Reads wait for a moment, and then return what is on disk."""
        self.cache.upsert(PODS, POD, item("a", 9))
        found = self.cache.get(PODS, "default", "a")
        self.clock.advance(0)
        self.clock.advance(BARRIER_SECONDS - 0.01)
        self.assertNoResult(found)
        self.clock.advance(0.01)
        self.assertEqual("1", self.successResultOf(found).item.version)
        self.writer.release()
        self.assertEqual("9", self.get("a").item.version)

    def test_logged(self) -> None:
        """A write that takes seconds is reported as a problem until it ends."""
        self.cache.upsert(PODS, POD, item("a", 9))
        self.clock.advance(1)
        self.clock.advance(SLOW_SECONDS)
        self.assertIsNone(self.cache.problem())
        self.clock.advance(0.1)
        self.assertIn("takes more than 5 s", self.cache.problem())
        self.assertTrue(self.cache.stats.broken)
        # Reads do not wait for it then.
        self.assertEqual("1", self.get("a").item.version)
        self.writer.release()
        self.assertIsNone(self.cache.problem())

    def test_together(self) -> None:
        """Changes in the meantime are a single write, with the last state of each object."""
        self.cache.upsert(PODS, POD, item("a", 9))
        self.clock.advance(1)
        for version in range(10, 1000):
            self.cache.upsert(PODS, POD, item("a", version, body=BODY))
        self.assertLess(self.cache.stats.queued, 10_000)
        before = self.cache.stats.written
        self.writer.release()
        self.assertEqual("999", self.get("a").item.version)
        self.assertEqual(before + 2, self.cache.stats.written)

    def test_limit(self) -> None:
        """Over the limit the oldest changes are dropped, counted, logged and known to reads."""
        self.writer.release()
        self.stop()
        self.start(max_queued=100_000)
        self.assertTrue(self.read()[1])
        self.writer.holds = True
        for number in range(100):
            self.cache.upsert(PODS, POD, item(f"pod-{number:03}", 9, body=BODY))
            self.assertLessEqual(self.cache.stats.queued, 100_000)
        self.assertEqual(84, self.cache.stats.dropped)
        self.assertEqual(1, self.count_logs("were dropped"))
        self.writer.release()
        self.assertEqual({"a", *(f"pod-{number:03}" for number in range(84, 100))}, {*self.names()})
        self.assertFalse(self.read()[1])
        self.restart()
        self.assertFalse(self.read()[1])
        report_list(self.cache, [item("a")], 10)
        self.assertTrue(self.read()[1])

    def test_unknown_changes_over_the_limit(self) -> None:
        """If they are dropped, all forms and views of their resource are incomplete."""
        view, other = PODS._replace(view="status.phase=x"), PODS._replace(resource="x.v1.core")
        for collection in (view, other):
            report_list(self.cache, [item("a")], 5, Scope(collection))
        self.start_small()
        self.cache.mark_changed(PODS.client, PODS.resource, "default", "9")
        self.drop_it()
        self.assertEqual([False, False, True], self.completeness(PODS, view, other))
        self.writer.release()
        self.restart()
        self.assertEqual([False, False, True], self.completeness(PODS, view, other))

    def completeness(self, *collections: Collection) -> list[bool]:
        """Return whether their lists are complete, also while the disk hangs."""
        known = [self.cache.known_version(Scope(collection)) for collection in collections]
        self.clock.advance(BARRIER_SECONDS)
        return [self.result(version) is not None for version in known]

    def start_small(self, **options) -> None:
        """Start a cache with little memory, and a disk that hangs."""
        self.writer.release()
        self.stop()
        self.start(max_queued=100_000, **options)
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True

    def send_change(self) -> None:
        """Report a pod from a watch that began at 100."""
        self.cache.upsert(PODS, POD, item("new", 150, body=BODY))
        self.cache.advance(ALL, "100", "150")

    def drop_it(self) -> None:
        """Cause it to be dropped for changes of nodes."""
        number = 0
        while not self.cache.stats.dropped:
            number += 1
            self.cache.upsert(NODES, POD, item(f"node-{number}", 200, body=BODY))

    def assert_lacking(self) -> None:
        """Assert that pods are incomplete, whatever is reported, until they are listed."""
        self.cache.advance(ALL, "100", "300")
        self.clock.advance(1)
        for _ in range(2):
            self.assertIsNone(self.cache.problem())
            self.assertNotIn("new", self.names())
            self.assertFalse(self.read()[1])
            self.restart()
        report_list(self.cache, [item("new", 150)], 300)
        self.assertEqual((True, {"new": "150"}), (self.read()[1], self.names()))

    def test_dropped_after_a_list_that_is_retried(self) -> None:
        """A list that failed at first does not hide changes that were dropped meanwhile."""
        self.start_small(connect=connect_failing)
        report_list(self.cache, [item("a", 50)], 100)
        self.clock.advance(1)
        self.send_change()
        self.drop_it()
        self.patch(FailingConnection, "code", sqlite3.SQLITE_IOERR)
        self.writer.release()
        self.clock.advance(0)
        self.assertIsNotNone(self.cache.problem())
        self.patch(FailingConnection, "code", None)
        self.pass_time(31)
        self.assert_lacking()

    def test_dropped_between_pages(self) -> None:
        """The last page of a late list is incomplete even if the newer list is forgotten."""
        self.start_small()
        self.writer.release()
        report_list(self.cache, [], 400, Scope(PODS, "", "app=web"))
        report_list(self.cache, [item("b", 90, labels={"app": "web"})], 300, next_token="more")
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True
        self.send_change()
        self.drop_it()
        self.writer.release()
        self.assertFalse(self.read()[1])
        report_list(self.cache, [item("c", 90)], 300, token="more")
        self.assertEqual(({"c": "90"}, False), (self.names(), self.read()[1]))
        self.cache.advance(ALL, "300", "400")
        self.assertTrue(self.read()[1])

    def test_dropped_before_a_list_that_is_cut(self) -> None:
        """Nor does a list that is still being parsed when too many writes wait for it."""
        listing = self.begin_to_cut()
        self.send_change()
        self.drop_it()
        self.writer.release()
        self.clock.advance(1)
        self.end_cutting(listing)
        self.assert_lacking()

    def test_dropped_before_a_list_that_waits(self) -> None:
        """Nor does a list that is queued already, behind writes that have overtaken it."""
        self.patch(queue, "MAX_PENDING", 0)
        listing = self.begin_to_cut()
        self.send_change()
        self.end_cutting(listing)
        self.drop_it()
        self.writer.release()
        self.assert_lacking()

    def begin_to_cut(self):
        """Return a list that was received, and is being parsed."""
        self.start_small()
        listing = self.cache.begin_list(ALL, "")
        listing.add([item("a", 50)])
        listing.lag(5_000, True)
        return listing

    def end_cutting(self, listing) -> None:
        """Complete its parsing."""
        listing.lag(0, True)
        listing.complete(ListMeta(POD, "100"))

    def drop_tokens(self, *digests: bytes) -> None:
        """Cause accepted tokens to be dropped, while the disk accepts no writes."""
        self.writer.release()
        self.stop()
        self.start(max_queued=100_000)
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True
        self.cache.upsert(PODS, POD, item("a", 9))
        self.clock.advance(1)
        for digest in digests:
            self.cache.store_token(digest, "owner", 1000.0)
        for number in range(20):
            self.cache.upsert(PODS, POD, item(f"pod-{number:03}", 9, body=BODY))

    def test_a_token_that_was_dropped(self) -> None:
        """A token that was dropped for lack of room is written later, without another report."""
        self.drop_tokens(b"digest", b"refused")
        self.cache.delete_token(b"refused")
        self.writer.release()
        self.clock.advance(1)
        self.restart()
        self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))
        self.assertIsNone(self.result(self.cache.token_owner(b"refused")))

    def test_a_token_that_was_dropped_before_the_end(self) -> None:
        """It is written even if the cache stops as soon as its disk accepts writes."""
        self.drop_tokens(b"digest")
        stopped = self.cache.stopService()
        self.writer.release()
        self.result(stopped)
        self.assertEqual(0, self.count_logs("were not written"))
        self.restart()
        self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))

    def test_made_up_tokens(self) -> None:
        """Rejected tokens, of which anyone can make up any number, displace no queued write."""
        self.writer.release()
        self.cache.store_token(b"of an earlier run", "owner", 1000.0)
        self.stop()
        self.start(max_queued=1_000_000)
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True
        self.cache.upsert(PODS, POD, item("a", 9))
        self.clock.advance(1)
        self.cache.upsert(PODS, POD, item("b", 9))
        for number in range(5_000):
            self.cache.delete_token(b"made up %d" % number)
        self.cache.delete_token(b"of an earlier run")
        self.assertIsNone(self.result(self.cache.token_owner(b"of an earlier run")))
        self.assertLess(self.cache.stats.queued, 2_000)
        self.writer.release()
        self.assertEqual({"a": "9", "b": "9"}, self.names())
        self.assertEqual((0, 0), (self.cache.stats.dropped, self.cache.stats.queued))
        self.restart()
        self.assertIsNone(self.result(self.cache.token_owner(b"of an earlier run")))

    def test_a_token_that_is_accepted_after_all(self) -> None:
        """A token that was rejected while the disk hung, and then accepted, is known."""
        self.cache.upsert(PODS, POD, item("a", 9))
        self.clock.advance(1)
        self.cache.delete_token(b"digest")
        self.cache.store_token(b"digest", "owner", 1000.0)
        self.writer.release()
        self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))
        self.restart()
        self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))

    def test_lists_that_do_not_fit(self) -> None:
        """A list that is larger than the memory for lists does not change anything."""
        self.writer.release()
        self.stop()
        self.start(max_queued=3_000_000)
        report_list(self.cache, [item(f"pod-{n}", body=BODY * 30) for n in range(50)], 9)
        self.assertEqual({"a": "1"}, self.names())
        self.assertEqual((1, 0), (self.cache.stats.refused, self.cache.stats.queued))
        self.assertEqual(1, self.count_logs("is not cached: 4 MB"))

    def test_a_page_that_was_dropped(self) -> None:
        """A list with a dropped page removes nothing, and is not complete."""
        self.writer.release()
        self.stop()
        self.start(max_queued=100_000)
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True
        self.cache.upsert(PODS, POD, item("z", body=BODY))
        self.clock.advance(1)
        first = [item(f"b-{number}", body=BODY) for number in range(8)]
        report_list(self.cache, first, 9, next_token="two")
        for number in range(10):
            self.cache.upsert(PODS, POD, item(f"c-{number}", body=BODY))
        report_list(self.cache, [], 9, token="two")
        self.writer.release()
        _, complete, items = self.read()
        names = {each.name for each in items}
        self.assertEqual((False, True, False), (complete, "a" in names, "b-0" in names))

    def test_stop(self) -> None:
        """Shutdown does not wait for the disk."""
        self.cache.upsert(PODS, POD, item("a", 9))
        stopped = self.cache.stopService()
        self.pass_time(15)
        self.successResultOf(stopped)
        self.assertEqual(1, self.count_logs("The last changes were not written"))


class HangingDiskTests(LoggedCacheTestCase):
    """A disk that hangs during reads."""

    def setUp(self) -> None:
        """Create a cache whose reader can be held, and a list that is being read."""
        super().setUp()
        self.reader = HeldJobs()
        self.restart(reader=self.reader)
        report_list(self.cache, [item("a")], 5)
        self.listed = self.result(self.cache.list(ALL))
        self.addCleanup(self.listed.close)
        self.reader.holds = True
        self.addCleanup(self.reader.release)

    def test_not_waited_for(self) -> None:
        """All reads have a timeout, and so has the wait for a concurrent read of a list."""
        readings = [
            self.cache.get(PODS, "default", "a"),
            self.cache.known_version(ALL),
            self.cache.document("", "/version", "application/json"),
            self.cache.token_owner(b"digest"),
            self.cache.stored_events(1),
            self.listed.read(),
            *(self.cache.list(ALL) for _ in range(MAX_CONCURRENT_READS)),
        ]
        self.clock.advance(READ_TIMEOUT - 0.1)
        for each in readings:
            self.assertNoResult(each)
        self.clock.advance(0.1)
        for each in readings:
            self.assertIn("did not return the cached data in time", self.failure(each))
