"""Full or broken disks and damaged files do not affect online clients."""

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
    item,
    read_all,
    report_list,
)
from tests.hub.cache.logged_cache import (
    BODY,
    FailingConnection,
    LoggedCacheTestCase,
    connect_failing,
)
from yurttunnel.hub.cache import objects, schema
from yurttunnel.hub.cache.clients import HOUR
from yurttunnel.hub.cache.errors import CacheDamaged
from yurttunnel.hub.cache.interfaces import CachedDocument, CacheFailed, Scope
from yurttunnel.hub.cache.reading import Snapshot


class FullDiskTests(SynchronousTestCase):
    """A full disk."""

    def test_small_disk(self) -> None:
        """The tests of ``small_disk`` pass in a mount namespace of their own."""
        self.run_tests("mount -t tmpfs -o size=1m,mode=0700 none {path}")

    def test_small_blocks(self) -> None:
        """They pass on a disk whose blocks are smaller than the pages of memory, too."""
        self.run_tests(
            "truncate -s 1500k {path}.img && mkfs.ext4 -q -b 1024 -m 0 -O ^has_journal {path}.img"
            " && mount -o loop {path}.img {path} && rmdir {path}/lost+found && chmod 0700 {path}"
        )

    def run_tests(self, mount: str) -> None:
        """Run the tests of ``small_disk`` on the disk that a command mounts."""
        path = Path(self.mktemp()).absolute()
        path.mkdir()
        run = [sys.executable, "-m", "twisted.trial", f"--temp-directory={path}-trial"]
        script = f"{{ {mount.format(path=path)}; }} || exit 9; exec {' '.join(run)}"
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


class SmallDiskConnection(sqlite3.Connection):
    """A connection whose disk has room for that many ``pages`` of its file."""

    pages = 1_280

    def execute(self, statement, *values):
        """Execute a statement, with the disk's limit instead of the cache's."""
        if statement.startswith("PRAGMA max_page_count"):
            statement = f"PRAGMA max_page_count = {self.pages}"
        return super().execute(statement, *values)


class SmallDiskTests(LoggedCacheTestCase):
    """A disk with room for some writes only."""

    def setUp(self) -> None:
        """Create a small disk."""
        super().setUp()
        self.stop()

        def connect(uri: str) -> sqlite3.Connection:
            return sqlite3.connect(uri, isolation_level=None, factory=SmallDiskConnection, uri=True)

        self.start(connect=connect)
        report_list(self.cache, [item("a")], 5)
        self.assertEqual({"a": "1"}, self.names())

    def test_a_list_that_does_not_fit(self) -> None:
        """The list is dropped, later writes are done, and the previous list becomes incomplete."""
        items = [item(f"pod-{number}", 6, body=BODY) for number in range(2_000)]
        for scope in (ALL, Scope(PODS._replace(client="app a"))):
            report_list(self.cache, items, 6, scope)
        self.cache.upsert(PODS, POD, item("a", 9))
        self.cache.store_token(b"digest", "owner", 1000.0)
        self.clock.advance(1)
        self.assertEqual(2, self.cache.stats.dropped)
        self.assertEqual(1, self.count_logs("not cached: the cache"))
        self.assertIn("the disk is full", self.cache.problem())
        for _ in range(2):
            self.assertEqual("owner", self.result(self.cache.token_owner(b"digest")))
            self.assertEqual((False, {"a": "9"}), (self.read()[1], self.names()))
            self.restart()
        report_list(self.cache, [item("a", 9)], 10)
        self.assertTrue(self.read()[1])

    def test_small_ones_that_do_not_fit(self) -> None:
        """Small writes wait until there is room, and later ones behind them; none is lost."""
        items = [item(f"pod-{number}", 6, body=BODY) for number in range(600)]
        report_list(self.cache, items, 6)
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


class BrokenDiskTests(LoggedCacheTestCase):
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
                (sqlite3.SQLITE_BUSY, "another process has locked it"),
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
            self.assertEqual(1, self.count_logs(words))
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


class DamageTests(LoggedCacheTestCase):
    """A file that is damaged, or not an SQLite database."""

    LABELED = Scope(PODS, "", "label=value")

    def setUp(self) -> None:
        """Write many objects, and stop."""
        super().setUp()
        self.items = [item(f"pod-{number:03}", 9, body=BODY) for number in range(200)]
        report_list(self.cache, self.items, 10)
        self.path = self.directory / "cache.db"
        self.pass_time(1)
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
        self.assertEqual(
            (1, 1), (self.cache.stats.damaged, self.count_logs("a new one was created"))
        )
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
        """Each version has a file of its own, which it uses again after a rollback.

        An hour with the API outdates the others. None counts as damaged.
        """
        own = schema.VERSION
        steps = (
            # The version, what its clients are served at first, and whether it is online then.
            (98, set(), True),
            (99, set(), False),
            (98, {"98"}, False),
            (99, set(), False),
            (98, {"98"}, True),
            (own, set(), True),
            (98, set(), False),
        )
        for version, names, online in steps:
            self.patch(schema, "VERSION", version)
            self.start()
            self.assertEqual(names, self.everything(), version)
            self.assertEqual(1, self.cache.replacements)
            others = self.others()
            self.assertEqual(1, len({path.name.removesuffix("-wal") for path in others}))
            if online:
                report_list(self.cache, [item(str(version), 9)], 10)
                self.assertEqual({str(version)}, self.everything())
                self.assertEqual(others, self.others())
                self.pass_time(int(HOUR))
                others = set()
            self.assertEqual(0, self.cache.stats.damaged)
            self.stop()
            self.assertEqual(others, self.others())
        self.assertEqual(len(steps), self.count_logs("another version"))
        self.assertEqual(len(steps), self.count_logs("for a rollback"))

    def others(self) -> set[Path]:
        """Return the files of other versions."""
        return set(self.directory.glob("*.version-*"))

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
            report_list(self.cache, self.items, 10)
            self.pass_time(40)
            report_list(self.cache, self.items, 11)
            self.assertEqual(200, len(self.everything() or ()), (offset, self.lines))
            self.assertIsNone(self.cache.problem())
            found += self.cache.stats.damaged
            self.stop()
        self.assertGreater(found, 0)
        self.assertEqual(found, self.count_logs("a new one was created"))

    def test_damaged_bodies(self) -> None:
        """Objects whose bodies have changed on the disk are not served, which SQLite accepts.

        All others are, until an API server responds, from which clients can list again.
        """
        changed = self.good.replace(b"x" * 100, b"y" * 100, 1)
        for read in (
            lambda: self.cache.get(PODS, "default", "pod-000"),
            lambda: Deferred.fromCoroutine(read_all(self.cache)),
        ):
            self.start_with(changed)
            self.assertIn("the checksum of 'pod-000' does not match", self.failure(read()))
            self.cache.store_token(b"digest", "owner", 1000.0)
            self.pass_time(31)
            self.assertIsNone(self.everything())
            self.assertIsNotNone(self.result(self.cache.get(PODS, "default", "pod-001")))
            self.assertEqual(0, self.cache.stats.damaged)
            self.cache.upsert(PODS, POD, item("a", 9))
            self.assertEqual({"a"}, self.everything())
            self.assertEqual(1, self.cache.stats.damaged)
            self.stop()
        self.assertEqual(2, self.count_logs("it is not served"))

    def test_damaged_texts(self) -> None:
        """Texts that have changed on the disk are treated in the same way, as are documents."""
        self.start_with(self.good)
        labels = {"label": "value"}
        report_list(self.cache, [item("labeled", 9, labels=labels, node="edge")], 10, self.LABELED)
        document = CachedDocument("text/plain", b"swagger")
        self.cache.store_document("", "/path", "form", document)
        self.cache.store_event("/event", "text/html", b"body", "token", "account")
        self.cache.store_token(b"digest", "holder", 1000.0)
        self.pass_time(1)
        self.assertEqual(document, self.result(self.document()))
        self.stop()
        good = self.path.read_bytes()
        for text, changed, read in (
            (b'"value"', b'"val\0e"', self.labeled),
            (b'"value"', b'"val\xffe"', self.labeled),
            (b"labeled", b"label\xffd", self.labeled),
            (b"edge", b"edg\xff", self.labeled),
            # Valid, but not what was written: the list would lack an object.
            (b'"value"', b'"valve"', self.labeled),
            (b"edge", b"edgy", self.labeled),
            (b"v1Pod", b"v\xffPod", lambda: self.cache.get(PODS, "default", "pod-001")),
            (b"text/plain", b"text/plai\xff", self.document),
            (b"text/plain", b"text/plai\n", self.document),
            (b"swagger", b"changed", self.document),
            (b"text/html", b"text/htm\xff", lambda: self.cache.stored_events(1)),
            (b"holder", b"hold\xffr", lambda: self.cache.token_owner(b"digest")),
        ):
            self.start_with(good.replace(text, changed))
            self.assertIn("is damaged", self.failure(read()), changed)
            self.pass_time(31)
            self.assertEqual(0, self.cache.stats.damaged, changed)
            self.cache.upsert(PODS, POD, item("a", 9))
            self.assertEqual({"a"}, self.everything(), changed)
            self.assertEqual(1, self.cache.stats.damaged, changed)
            self.stop()

    def test_missing_rows(self) -> None:
        """Objects that cannot be found any more do not count as deleted, in lists or alone."""
        self.start_with(self.good)
        self.assertEqual(200, len(self.everything()))
        self.stop()
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            # As after damage to a page: without the trigger, which counts the object.
            connection.execute("DROP TRIGGER object_goes")
            connection.execute("DELETE FROM objects WHERE name = 'pod-001'")
        self.start()
        for read in self.cache.list, self.cache.known_version:
            self.assertIn("is damaged", self.failure(read(ALL)))
        self.assertIsNotNone(self.get("pod-002"))

    def test_damaged_index(self) -> None:
        """Objects that the index does not find under their names do not count as deleted."""
        self.start_with(self.good)
        report_list(self.cache, [item("other", 9, namespace="tenant")], 10, Scope(PODS, "tenant"))
        self.pass_time(1)
        self.stop()
        good = self.path.read_bytes()
        # The first one in the file is in the row, or in the index.
        for number in (1, 2):
            parts = good.split(b"tenantother")
            self.assertEqual(3, len(parts))
            before, after = b"tenantother".join(parts[:number]), b"tenantother".join(parts[number:])
            self.start_with(before + b"tenanuother" + after)
            self.assertIn("is damaged", self.failure(self.cache.list(Scope(PODS, "tenant"))))
            self.stop()

    def test_evicted_while_it_is_read(self) -> None:
        """The version of a list that is evicted at that moment is the last known one."""
        self.start_with(self.good)
        self.pass_time(1)
        known_version = objects.known_version

        def evict(*arguments):
            version = known_version(*arguments)
            with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
                for table in ("objects", "scopes", "collections"):
                    connection.execute(f"DELETE FROM {table}")
            return version

        self.patch(objects, "known_version", evict)
        self.assertIsNotNone(self.result(self.cache.known_version(ALL)))

    def test_no_text_is_quoted(self) -> None:
        """The report of a text that is not UTF-8 does not quote it: it may be a token."""
        self.start_with(self.good)
        self.cache.store_event("/event", "text/html", b"body", "abcdef.0123456789abcdeX", "account")
        self.pass_time(1)
        self.stop()
        self.start_with(self.path.read_bytes().replace(b"abcdeX", b"abcde\xff"))
        problem = self.failure(self.cache.stored_events(9))
        self.assertIn("is damaged (a text is not UTF-8)", problem)
        self.assertEqual(0, self.count_logs("abcdef"))

    def test_damaged_types(self) -> None:
        """A document whose body has become a text is damaged."""
        self.start_with(self.good)
        self.cache.store_document("", "/path", "form", CachedDocument("text/plain", b"swagger"))
        self.pass_time(1)
        self.stop()
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("UPDATE documents SET body = CAST(body AS TEXT)")
        self.start()
        self.assertIn("is damaged", self.failure(self.document()))

    def test_damaged_for_writes(self) -> None:
        """What the API reports is written to a new file if the old one cannot take it."""
        self.start_with(self.good)
        labeled = item("labeled", 9, labels={"label": "value"})
        report_list(self.cache, [labeled], 12, self.LABELED)
        self.pass_time(1)
        self.stop()
        good = self.path.read_bytes()
        other = Scope(PODS, "", "other=value")
        for text, changed, write in (
            (b'"value"', b"[value]", lambda: report_list(self.cache, [], 13, self.LABELED)),
            (b"label=value", b"label=(alue", lambda: self.cache.remove(other, labeled)),
            (b"label=value", b"label=(alue", lambda: report_list(self.cache, [item("b", 8)], 11)),
        ):
            self.start_with(good.replace(text, changed))
            write()
            self.cache.upsert(PODS, POD, item("a", 9))
            self.pass_time(1)
            self.assertEqual("9", self.get("a").item.version)
            self.assertEqual(1, self.cache.stats.damaged)
            self.assertIsNone(self.get("pod-001"))
            self.stop()

    def test_damaged_tables(self) -> None:
        """If the definition of a table has changed on the disk, the file is not used."""
        for changed in (b"CONTENT-TYPE TEXT", b"content_typ\xff TEXT", b"content_type TEX)"):
            self.start_with(self.good.replace(b"content_type TEXT", changed))
            self.document().addErrback(lambda failure: failure.trap(CacheFailed))
            self.pass_time(1)
            self.assertIsNone(self.result(self.document()))
            self.assertEqual(1, self.cache.stats.damaged)
            self.stop()

    def test_a_damaged_guest(self) -> None:
        """Writes of guests wait until an API server responds, and the rest is served until then."""
        self.start_with(self.good)
        report_list(self.cache, [item("a")], 1, Scope(PODS._replace(client="app guest")))
        self.pass_time(1)
        self.stop()
        self.start_with(self.path.read_bytes().replace(b"app guest", b"app gues\xff"))
        self.cache.store_event("/event", "text/html", b"body", "token", "account")
        self.pass_time(31)
        self.assertIn("is damaged", self.cache.problem())
        self.assertEqual(200, len(self.everything()))
        self.cache.upsert(PODS, POD, item("a", 9))
        self.pass_time(60)
        self.assertEqual(1, len(self.result(self.cache.stored_events(9))))
        self.assertEqual(({"a"}, 1), (self.everything(), self.cache.stats.damaged))

    def labeled(self) -> Deferred:
        """Read the list with a selector."""
        return Deferred.fromCoroutine(read_all(self.cache, self.LABELED))

    def document(self) -> Deferred:
        """Read the document."""
        return self.cache.document("", "/path", "form")

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

    def test_replacements(self) -> None:
        """It is known when the file is not the earlier one, and has none of the lists or others."""
        self.start_with(self.good)
        self.assertIsNotNone(self.everything())
        self.assertEqual(0, self.cache.replacements)
        reported: list[int] = []
        self.cache.on_replaced.append(lambda: reported.append(self.cache.replacements))
        for content in (None, self.good, self.good[: len(self.good) // 2]):
            for each in self.directory.iterdir():
                each.unlink()
            if content is not None:
                self.path.write_bytes(content)
            self.cache.upsert(PODS, POD, item("a", 9))
            self.pass_time(31)
        # The truncated file is opened, and then set aside.
        self.assertEqual([1, 2, 3], reported[:3])
        self.restart()
        self.get("a")
        self.assertEqual(0, self.cache.replacements)
        self.stop()
        self.start_with(b"no database" * 1000)
        self.everything()
        self.assertEqual(1, self.cache.replacements)

    def test_the_first_file(self) -> None:
        """The first file of a node replaces none."""
        self.stop()
        for path in self.directory.iterdir():
            path.unlink()
        self.start()
        self.assertIsNone(self.get("a"))
        self.assertEqual((0, True), (self.cache.replacements, self.path.exists()))

    def test_cut_short(self) -> None:
        """A truncated file is treated in the same way."""
        self.start_with(self.good[: len(self.good) // 2])
        self.everything()
        report_list(self.cache, self.items, 11)
        self.pass_time(40)
        report_list(self.cache, self.items, 12)
        self.assertEqual({each.name for each in self.items}, self.everything())
        self.assertEqual(1, self.cache.stats.damaged)


class PermissionTests(LoggedCacheTestCase):
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

    def test_a_pipe(self) -> None:
        """A named pipe does not keep the thread that reads, which works once it is removed."""
        self.stop()
        path = self.directory / "cache.db"
        path.unlink()
        os.mkfifo(path)
        self.restart()
        self.assertIn("is not a plain file", self.failure(self.cache.get(PODS, "default", "a")))
        path.unlink()
        self.pass_time(31)
        self.assertIsNone(self.get("a"))

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
