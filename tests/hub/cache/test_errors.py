"""Slow, full or broken disks and damaged files do not affect online clients."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.cache.caches import (
    ALL,
    NODES,
    POD,
    PODS,
    HeldJobs,
    item,
    read_all,
    tell_list,
)
from tests.hub.cache.test_store import CacheTestCase
from tests.logged import logged_lines
from yurttunnel.hub.cache import queue
from yurttunnel.hub.cache.cached_list import READ_TIMEOUT
from yurttunnel.hub.cache.errors import CacheDamaged
from yurttunnel.hub.cache.interfaces import CachedDocument, CacheFailed, Scope
from yurttunnel.hub.cache.reading import Snapshot
from yurttunnel.hub.cache.store import MAX_CONCURRENT_READS
from yurttunnel.hub.cache.writer import BARRIER_SECONDS, SLOW_SECONDS
from yurttunnel.hub.media.interfaces import ListMeta

BODY = b"x" * 5_700


class TroubleTestCase(CacheTestCase):
    """A cache whose log is checked."""

    def setUp(self) -> None:
        """Observe the log."""
        self.lines = logged_lines(self, "yurttunnel.hub.cache")
        super().setUp()

    def said(self, words: str) -> int:
        """Return the number of log lines with these words."""
        return sum(words in line for line in self.lines)

    def failure(self, deferred: Deferred) -> str:
        """Return the message of a failed read."""
        self.clock.advance(0)
        return str(self.failureResultOf(deferred, CacheFailed).value)

    def pass_time(self, seconds: int) -> None:
        """Advance the clock."""
        for _ in range(seconds):
            self.clock.advance(1)


class SlowDiskTests(TroubleTestCase):
    """A disk with a slow fsync(2)."""

    def setUp(self) -> None:
        """Create a cache whose writer can be held."""
        self.writer = HeldJobs()
        super().setUp()
        tell_list(self.cache, [item("a")], 5)
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

    def test_said(self) -> None:
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

    def test_bound(self) -> None:
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
        self.assertEqual(1, self.said("were dropped"))
        self.writer.release()
        self.assertEqual({"a", *(f"pod-{number:03}" for number in range(84, 100))}, {*self.names()})
        self.assertFalse(self.read()[1])
        self.restart()
        self.assertFalse(self.read()[1])
        tell_list(self.cache, [item("a")], 10)
        self.assertTrue(self.read()[1])

    def start_small(self, **options) -> None:
        """Start a cache with little memory, and a disk that hangs."""
        self.writer.release()
        self.stop()
        self.start(max_queued=100_000, **options)
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True

    def tell_a_change(self) -> None:
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
        tell_list(self.cache, [item("new", 150)], 300)
        self.assertEqual((True, {"new": "150"}), (self.read()[1], self.names()))

    def test_dropped_behind_a_list_that_is_tried_again(self) -> None:
        """A list that failed at first does not hide changes that were dropped meanwhile."""
        self.start_small(connect=connect_failing)
        tell_list(self.cache, [item("a", 50)], 100)
        self.clock.advance(1)
        self.tell_a_change()
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
        tell_list(self.cache, [], 400, Scope(PODS, "", "app=web"))
        tell_list(self.cache, [item("b", 90, labels={"app": "web"})], 300, next_token="more")
        self.assertEqual({"a": "1"}, self.names())
        self.writer.holds = True
        self.tell_a_change()
        self.drop_it()
        self.writer.release()
        self.assertFalse(self.read()[1])
        tell_list(self.cache, [item("c", 90)], 300, token="more")
        self.assertEqual(({"c": "90"}, False), (self.names(), self.read()[1]))
        self.cache.advance(ALL, "300", "400")
        self.assertTrue(self.read()[1])

    def test_dropped_before_a_list_that_is_cut(self) -> None:
        """Nor does a list that is still being parsed when too many writes wait for it."""
        listing = self.begin_to_cut()
        self.tell_a_change()
        self.drop_it()
        self.writer.release()
        self.clock.advance(1)
        self.end_cutting(listing)
        self.assert_lacking()

    def test_dropped_before_a_list_that_waits(self) -> None:
        """Nor does a list that is queued already, behind writes that have overtaken it."""
        self.patch(queue, "MAX_PENDING", 0)
        listing = self.begin_to_cut()
        self.tell_a_change()
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
        self.assertEqual(0, self.said("were not kept"))
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
        tell_list(self.cache, [item(f"pod-{n}", body=BODY * 30) for n in range(50)], 9)
        self.assertEqual({"a": "1"}, self.names())
        self.assertEqual((1, 0), (self.cache.stats.refused, self.cache.stats.queued))
        self.assertEqual(1, self.said("is not cached: 4 MB"))

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
        tell_list(self.cache, first, 9, next_token="two")
        for number in range(10):
            self.cache.upsert(PODS, POD, item(f"c-{number}", body=BODY))
        tell_list(self.cache, [], 9, token="two")
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
        self.assertEqual(1, self.said("The last changes were not kept"))


class HangingDiskTests(TroubleTestCase):
    """A disk that hangs during reads."""

    def setUp(self) -> None:
        """Create a cache whose reader can be held, and a list that is being read."""
        super().setUp()
        self.reader = HeldJobs()
        self.restart(reader=self.reader)
        tell_list(self.cache, [item("a")], 5)
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


class FullDiskTests(SynchronousTestCase):
    """A full disk."""

    def test_small_disk(self) -> None:
        """The tests of ``small_disk`` pass in a mount namespace of their own."""
        path = Path(self.mktemp()).absolute()
        path.mkdir()
        run = [sys.executable, "-m", "twisted.trial", f"--temp-directory={path}-trial"]
        script = f"mount -t tmpfs -o size=1m,mode=0700 none {path} || exit 9; exec {' '.join(run)}"
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{script} tests.hub.cache.small_disk"],
            env={**os.environ, "SMALL_DISK": str(path)},
            capture_output=True,
            timeout=100,
            check=False,
        )
        if ended.returncode in (1, 9) and b"Ran" not in ended.stdout:
            self.skipTest("this machine lets nobody mount a disk in a namespace")
        self.assertIn(b"PASSED", ended.stdout, ended.stdout.decode())


class FailingConnection(sqlite3.Connection):
    """A connection whose transactions fail with ``code``, if it is set."""

    code: int | None = None

    def execute(self, statement, *values):
        """Execute a statement, or fail."""
        if self.code is not None and statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            raise error
        return super().execute(statement, *values)


def connect_failing(uri: str) -> sqlite3.Connection:
    """Return such a connection."""
    return sqlite3.connect(uri, isolation_level=None, factory=FailingConnection, uri=True)


class SmallDiskConnection(sqlite3.Connection):
    """A connection whose disk has room for that many ``pages`` of its file."""

    pages = 1_280

    def execute(self, statement, *values):
        """Execute a statement, with the disk's limit instead of the cache's."""
        if statement.startswith("PRAGMA max_page_count"):
            statement = f"PRAGMA max_page_count = {self.pages}"
        return super().execute(statement, *values)


class SmallDiskTests(TroubleTestCase):
    """A disk with room for some writes only."""

    def setUp(self) -> None:
        """Create a small disk."""
        super().setUp()
        self.stop()

        def connect(uri: str) -> sqlite3.Connection:
            return sqlite3.connect(uri, isolation_level=None, factory=SmallDiskConnection, uri=True)

        self.start(connect=connect)
        tell_list(self.cache, [item("a")], 5)
        self.assertEqual({"a": "1"}, self.names())

    def test_a_list_that_does_not_fit(self) -> None:
        """The list is dropped, later writes are done, and the previous list becomes incomplete."""
        items = [item(f"pod-{number}", 6, body=BODY) for number in range(2_000)]
        for scope in (ALL, Scope(PODS._replace(client="app a"))):
            tell_list(self.cache, items, 6, scope)
        self.cache.upsert(PODS, POD, item("a", 9))
        self.cache.store_token(b"digest", "owner", 1000.0)
        self.clock.advance(1)
        self.assertEqual(2, self.cache.stats.dropped)
        self.assertEqual(1, self.said("not kept: the cache"))
        self.assertIn("the disk is full", self.cache.problem())
        for _ in range(2):
            self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))
            self.assertEqual((False, {"a": "9"}), (self.read()[1], self.names()))
            self.restart()
        tell_list(self.cache, [item("a", 9)], 10)
        self.assertTrue(self.read()[1])

    def test_small_ones_that_do_not_fit(self) -> None:
        """Small writes wait until there is room, and later ones behind them; none is lost."""
        items = [item(f"pod-{number}", 6, body=BODY) for number in range(600)]
        tell_list(self.cache, items, 6)
        for number in range(400):
            self.cache.upsert(NODES, POD, item(f"node-{number}", 7, body=BODY))
        self.cache.upsert(PODS, POD, item("pod-0", 9))
        self.clock.advance(1)
        self.assertIn("the disk is full", self.cache.problem())
        self.assertEqual(0, self.cache.stats.dropped)
        self.patch(SmallDiskConnection, "pages", 10_000)
        self.pass_time(31)
        self.assertIsNone(self.cache.problem())
        self.assertEqual("9", self.names()["pod-0"])
        self.assertEqual((True, 600), (self.read()[1], len(self.names())))
        self.cache.advance(Scope(NODES), "7", "8")
        self.assertEqual(400, len(self.names(Scope(NODES))))


class BrokenDiskTests(TroubleTestCase):
    """A disk with errors."""

    def test_errors(self) -> None:
        """Each error has a message with a fix, which is logged once; reads continue."""
        self.restart(connect=connect_failing)
        self.cache.upsert(PODS, POD, item("a", 1))
        self.assertEqual("1", self.get("a").item.version)
        for version, (code, words) in enumerate(
            (
                (sqlite3.SQLITE_IOERR_FSYNC, "the disk has failed (disk I/O error)"),
                (sqlite3.SQLITE_READONLY_DBMOVED, "see how its disk is mounted"),
                (sqlite3.SQLITE_BUSY, "another process holds it"),
                (sqlite3.SQLITE_NOMEM, "there is no memory left"),
                (sqlite3.SQLITE_CANTOPEN, "it cannot be opened"),
            ),
            2,
        ):
            self.patch(FailingConnection, "code", code)
            self.cache.upsert(PODS, POD, item("a", version))
            self.clock.advance(1)
            self.assertIn(words, self.cache.problem())
            self.assertEqual(str(version - 1), self.get("a").item.version)
            self.pass_time(40)
            self.assertEqual(1, self.said(words))
            self.patch(FailingConnection, "code", None)
            self.pass_time(31)
            self.assertIsNone(self.cache.problem())
            self.assertEqual(str(version), self.get("a").item.version)

    def test_a_defect(self) -> None:
        """A defective change is logged, and the others of its batch are written."""
        self.cache.upsert(PODS, POD, item("a", 1))
        self.cache.upsert(PODS, POD, item("b", 1, labels={"x": object()}))
        self.cache.store_document("", "/version", "json", CachedDocument("x", b"{}"))
        self.cache.upsert(PODS, POD, item("c", 1))
        self.assertEqual(b"{}", self.result(self.cache.document("", "/version", "json")).body)
        self.assertEqual(1, len(self.flushLoggedErrors(TypeError)))
        self.assertIsNone(self.cache.problem())


class DamageTests(TroubleTestCase):
    """A file that is damaged, or not an SQLite database."""

    def setUp(self) -> None:
        """Write many objects, and stop."""
        super().setUp()
        self.items = [item(f"pod-{number:03}", 9, body=BODY) for number in range(200)]
        tell_list(self.cache, self.items, 10)
        self.path = self.directory / "cache.db"
        self.stop()
        self.good = self.path.read_bytes()

    def start_with(self, content: bytes) -> None:
        """Start with a file that has this content."""
        self.path.write_bytes(content)
        self.start()

    def everything(self) -> set[str] | None:
        """Return the names that can be read, ``None`` if reading fails."""
        reading = Deferred.fromCoroutine(read_all(self.cache))
        reading.addErrback(lambda failure: failure.trap(CacheFailed))
        read = self.result(reading)
        if read is CacheFailed:
            return None
        return {each.name for each in read[2]} if read else set()

    def test_no_database(self) -> None:
        """A file that is not a database is renamed, and a new cache is created."""
        self.start_with(b"This is no database, but it is long enough to be one. " * 1000)
        self.cache.upsert(PODS, POD, item("a", 9))
        self.assertEqual({"a": "9"}, self.names())
        self.assertEqual((1, 1), (self.cache.stats.damaged, self.said("a new one was created")))
        aside = self.directory / "cache.db.damaged"
        self.assertTrue(aside.read_bytes().startswith(b"This is"))

    def test_tokens(self) -> None:
        """Accepted tokens are written to the new file, without another report."""
        self.start_with(self.good)
        self.cache.store_token(b"digest", "owner", 1000.0)
        self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))
        for path in self.directory.iterdir():
            path.unlink()
        self.cache.upsert(PODS, POD, item("a", 9))
        self.pass_time(31)
        self.restart()
        self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))

    def test_another_version(self) -> None:
        """The same applies to a file of another version of the program."""
        self.start_with(self.good)
        self.stop()
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA user_version = 99")
        self.start_with(self.path.read_bytes())
        self.assertEqual(set(), self.everything() or set())
        self.assertEqual(1, self.said("another version"))

    def test_damaged(self) -> None:
        """Wherever the damage is, reads fail or return old data, and writes work again later."""
        found = 0
        for offset in range(0, len(self.good), len(self.good) // 40):
            damaged = bytearray(self.good)
            damaged[offset : offset + 2048] = random.Random(offset).randbytes(2048)
            self.start_with(bytes(damaged[: len(self.good)]))
            self.everything()
            again = self.everything()
            if again is not None and self.cache.stats.damaged:
                self.assertEqual(set(), again)
            tell_list(self.cache, self.items, 10)
            self.pass_time(40)
            tell_list(self.cache, self.items, 11)
            self.assertEqual(200, len(self.everything() or ()), (offset, self.lines))
            self.assertIsNone(self.cache.problem())
            found += self.cache.stats.damaged
            self.stop()
        self.assertGreater(found, 0)
        self.assertEqual(found, self.said("a new one was created"))

    def test_what_was_read_before(self) -> None:
        """Errors from reading a replaced file do not affect the new one."""
        self.start_with(self.good)
        listed = self.result(self.cache.list(ALL))
        for path in self.directory.iterdir():
            path.unlink()
        self.cache.upsert(PODS, POD, item("a", 9))
        self.pass_time(31)

        def read(_: object) -> None:
            raise CacheDamaged("the cache is damaged")

        self.patch(Snapshot, "read", read)
        self.failure(listed.read())
        listed.close()
        self.assertIsNotNone(self.get("a"))
        self.assertEqual(0, self.cache.stats.damaged)

    def test_cut_short(self) -> None:
        """A truncated file is treated in the same way."""
        self.start_with(self.good[: len(self.good) // 2])
        self.everything()
        tell_list(self.cache, self.items, 11)
        self.pass_time(40)
        tell_list(self.cache, self.items, 12)
        self.assertEqual({each.name for each in self.items}, self.everything())
        self.assertEqual(1, self.cache.stats.damaged)


class PermissionTests(TroubleTestCase):
    """The permissions of the files."""

    def test_closed(self) -> None:
        """The directory and all files are private, whatever the umask is."""
        self.stop()
        self.directory = Path(self.mktemp())
        self.addCleanup(os.umask, os.umask(0))
        self.restart()
        self.cache.upsert(PODS, POD, item("a"))
        self.assertIsNotNone(self.get("a"))
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in (self.directory, *self.directory.iterdir())
        }
        self.assertEqual(0o700, modes.pop(self.directory.name))
        self.assertEqual({"cache.db": 0o600, "cache.db-wal": 0o600, "cache.db-shm": 0o600}, modes)

    def test_open_file(self) -> None:
        """A file that others can read is made private."""
        self.stop()
        (self.directory / "cache.db").chmod(0o644)
        self.restart()
        self.assertIsNone(self.get("a"))
        self.assertEqual(0o600, stat.S_IMODE((self.directory / "cache.db").stat().st_mode))

    def test_open_directory(self) -> None:
        """A directory that others can write to is not used."""
        self.stop()
        self.directory.chmod(0o777)
        self.restart()
        self.assertIn("is open to other users (mode 0777): chmod 0700 it", self.cache.problem())

    def test_a_link(self) -> None:
        """A symbolic link is not followed."""
        self.stop()
        path = self.directory / "cache.db"
        path.rename(self.directory / "other")
        path.symlink_to("other")
        self.restart()
        self.assertIn("is not a plain file: remove it", self.cache.problem())

    def test_no_directory(self) -> None:
        """If the file cannot be created, this is reported, and retried."""
        self.stop()
        self.directory = Path(self.mktemp())
        self.directory.write_bytes(b"")
        self.restart()
        self.assertIn("is not a directory", self.cache.problem())
        self.failure(self.cache.get(PODS, "default", "a"))
        self.directory.unlink()
        self.pass_time(31)
        self.assertIsNone(self.get("a"))
        self.assertIsNone(self.cache.problem())

    def test_removed(self) -> None:
        """A file that was removed is created again."""
        self.cache.upsert(PODS, POD, item("a", 1))
        self.assertIsNotNone(self.get("a"))
        for path in self.directory.iterdir():
            path.unlink()
        self.cache.upsert(PODS, POD, item("b", 1))
        self.pass_time(31)
        self.assertEqual({"b": "1"}, self.names())
