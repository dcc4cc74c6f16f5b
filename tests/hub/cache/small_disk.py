"""Run by ``test_errors`` in a namespace with a small file system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.hub.cache.caches import POD, PODS, item, make_cache, report_list
from tests.hub.cache.logged_cache import BODY, LoggedCacheTestCase
from yurttunnel.hub.cache import schema
from yurttunnel.hub.cache.clients import HOUR
from yurttunnel.hub.cache.interfaces import Scope


class FullDiskTests(LoggedCacheTestCase):
    """A file system that is full, or becomes read-only: a small tmpfs."""

    def setUp(self) -> None:
        """Mount it, and write some data to the cache."""
        super().setUp()
        self.stop()
        self.directory = Path(os.environ["SMALL_DISK"])
        for path in self.directory.iterdir():
            path.unlink()
        self.cache = make_cache(self.directory, self.clock)
        self.cache.startService()
        report_list(self.cache, [item("a")], 5)
        self.assertEqual({"a": "1"}, self.names())

    def remount(self, how: str) -> None:
        """Remount it read-only or writable."""
        subprocess.run(["mount", "-o", f"remount,{how}", self.directory], check=True)

    def fulfil(self) -> Path:
        """Fill the file system."""
        path = self.directory / "filler"
        with path.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    continue
            except OSError:
                return path
        raise AssertionError("there is room without end")

    def test_full(self) -> None:
        """A full disk is reported, reads continue, and once there is room everything is written."""
        filler = self.fulfil()
        items = [item(f"pod-{number}", 9, body=BODY) for number in range(20)]
        report_list(self.cache, items, 10)
        self.clock.advance(1)
        self.assertIn("the disk is full: make room on it", self.cache.problem())
        self.assertEqual({"a": "1"}, self.names())
        self.cache.upsert(PODS, POD, item("b", 11))
        self.pass_time(300)
        self.assertEqual(1, self.count_logs("the disk is full"))
        self.assertEqual({"a": "1"}, self.names())
        filler.unlink()
        self.pass_time(31)
        self.assertIsNone(self.cache.problem())
        self.assertEqual(1, self.count_logs("is written again"))
        self.assertEqual({"b": "11"} | {each.name: "9" for each in items}, self.names())

    def test_full_for_a_large_list(self) -> None:
        """Nothing is dropped while there is no room for anything."""
        filler = self.fulfil()
        items = [item(f"pod-{number}", 9, body=BODY) for number in range(600)]
        report_list(self.cache, items, 10)
        self.pass_time(300)
        self.assertEqual(0, self.cache.stats.dropped)
        self.assertIn("the disk is full: make room on it", self.cache.problem())
        filler.unlink()
        self.cache.upsert(PODS, POD, item("b", 11))
        self.pass_time(31)
        self.assertEqual((1, {"a": "1", "b": "11"}), (self.cache.stats.dropped, self.names()))

    def test_full_at_the_start(self) -> None:
        """A cache that cannot be created reports it, and is created once there is room."""
        self.stop()
        for path in self.directory.iterdir():
            path.unlink()
        filler = self.fulfil()
        self.cache = make_cache(self.directory, self.clock)
        self.cache.startService()
        self.cache.upsert(PODS, POD, item("a", 9))
        self.assertIn("the disk is full", self.cache.problem())
        self.assertIn("the cache", self.failure(self.cache.get(PODS, "default", "a")))
        filler.unlink()
        self.pass_time(31)
        self.assertEqual("9", self.get("a").item.version)

    def test_full_at_the_next_start(self) -> None:
        """Cached data can be read even if the disk is full when the process starts."""
        self.stop()
        filler = self.fulfil()
        self.cache = make_cache(self.directory, self.clock)
        self.cache.startService()
        self.assertIn("the disk is full: make room on it", self.cache.problem())
        self.assertEqual({"a": "1"}, self.names())
        self.cache.upsert(PODS, POD, item("a", 9))
        self.assertEqual({"a": "1"}, self.names())
        filler.unlink()
        self.pass_time(31)
        self.assertEqual({"a": "9"}, self.names())

    def test_full_with_the_file_of_another_version(self) -> None:
        """It is set aside, used again by its version, and makes room after an hour with the API."""
        own = schema.VERSION
        self.cache.upsert(PODS, POD, item("large", 9, body=BODY * 50))
        self.assertIsNotNone(self.get("large"))
        self.stop()
        self.fulfil()
        for version in (own + 1, own):
            self.patch(schema, "VERSION", version)
            self.cache = make_cache(self.directory, self.clock)
            self.cache.startService()
            self.assertIn("the disk is full: make room on it", self.cache.problem())
            if version > own:
                self.assertIn("not been created", self.failure(self.cache.list(Scope(PODS))))
                self.stop()
        self.assertEqual({"a": "1", "large": "9"}, self.names())
        self.stop()
        self.patch(schema, "VERSION", own + 1)
        self.cache = make_cache(self.directory, self.clock)
        self.cache.startService()
        report_list(self.cache, [item("b", 10)], 11)
        self.pass_time(int(HOUR) - 1)
        self.assertIn("the disk is full: make room on it", self.cache.problem())
        self.pass_time(62)
        self.assertIsNone(self.cache.problem())
        self.assertEqual({"b": "10"}, self.names())

    def test_full_after_a_kill(self) -> None:
        """The data in the log of a process that was killed can be read from a full disk."""
        left = {
            path: path.read_bytes()
            for path in self.directory.iterdir()
            if not path.name.endswith("-shm")
        }
        self.assertIn("-wal", str(max(left, key=lambda path: len(left[path]))))
        self.stop()
        for path, content in left.items():
            path.write_bytes(content)
        filler = self.fulfil()
        self.cache = make_cache(self.directory, self.clock)
        self.cache.startService()
        self.assertEqual({"a": "1"}, self.names())
        self.assertTrue(self.is_locked())
        filler.unlink()
        self.pass_time(31)
        self.assertEqual(self.is_locked(), not list(self.directory.glob("*-shm")))
        self.cache.upsert(PODS, POD, item("a", 9))
        self.assertEqual({"a": "9"}, self.names())

    def test_read_only_after_a_kill(self) -> None:
        """A log, empty or not, and an index of it or none do not keep the cache from being read."""
        [path] = self.directory.glob("*.db")
        content = path.read_bytes()
        log = Path(f"{path}-wal").read_bytes()
        self.stop()
        whole = path.read_bytes()
        for written in ({"": content, "-wal": log}, {"": whole, "-wal": b""}, {"-shm": b""}):
            for suffix, each in written.items():
                Path(f"{path}{suffix}").touch(0o600)
                Path(f"{path}{suffix}").write_bytes(each)
            self.remount("ro")
            self.cache = make_cache(self.directory, self.clock)
            self.cache.startService()
            self.assertEqual({"a": "1"}, self.names())
            self.stop()
            self.remount("rw")

    def test_locked(self) -> None:
        """Other processes can use a new file only with the index that the hub uses."""
        self.assertEqual(self.is_locked(), not list(self.directory.glob("*-shm")))

    def is_locked(self) -> bool:
        """Return whether another process cannot use the file."""
        [path] = self.directory.glob("*.db")
        script = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0);"
            " c.execute('PRAGMA user_version').fetchone()"
        )
        ended = subprocess.run(
            [sys.executable, "-c", script, path], capture_output=True, text=True, check=False
        )
        self.assertIn("database is locked" if ended.returncode else "", ended.stderr)
        return ended.returncode != 0

    def test_read_only(self) -> None:
        """Cached data can be read from a read-only disk."""
        self.stop()
        self.remount("ro")
        self.cache = make_cache(self.directory, self.clock)
        self.cache.startService()
        self.assertEqual({"a": "1"}, self.names())
        self.assertIn("read-only", self.cache.problem().lower())
        self.cache.upsert(PODS, POD, item("a", 9))
        self.assertEqual({"a": "1"}, self.names())
        self.stop()
        self.remount("rw")
        self.cache = make_cache(self.directory, self.clock)
        self.cache.startService()
        self.cache.upsert(PODS, POD, item("a", 9))
        self.assertEqual({"a": "9"}, self.names())
