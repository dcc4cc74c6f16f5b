"""Dumps of the cache as text and as files."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
from pathlib import Path

from tests.hub.cache.caches import POD, PODS, item, report_list
from tests.hub.cache.test_store import CacheTestCase
from yurttunnel.hub.cache.dump import as_text, write_files
from yurttunnel.hub.cache.interfaces import CacheFailed, Scope
from yurttunnel.hub.media.interfaces import TypeMeta

BODY = b'{"metadata":{"name":"a"}}'


class DumpTests(CacheTestCase):
    """Dumps while the hub runs."""

    def setUp(self) -> None:
        """Write some objects."""
        super().setUp()
        report_list(self.cache, [item("a", 3, body=BODY), item("b", 4, "other", BODY)], 5)
        node = TypeMeta("v1", "Node")
        nodes = PODS._replace(resource="nodes.v1.core", client="kube-proxy owner")
        self.cache.upsert(nodes, node, item("edge", 6, "", BODY))
        self.assertIsNotNone(self.read())
        self.path = self.directory / "cache.db"
        self.target = Path(self.mktemp())

    def test_text(self) -> None:
        """Each collection has a line, followed by one for each of its objects."""
        self.assertEqual(
            [
                "kube-proxy owner nodes.v1.core json",
                "  edge version 6, 25 bytes",
                "kubelet pods.v1.core json",
                "  default/a version 3, 25 bytes",
                "  other/b version 4, 25 bytes",
            ],
            list(as_text(self.path)),
        )

    def test_without_the_hub(self) -> None:
        """A dump does not need a running hub."""
        self.stop()
        self.assertEqual(5, len(list(as_text(self.path))))
        for path in self.directory.iterdir():
            self.assertEqual(0o600, stat.S_IMODE(path.stat().st_mode), path)

    def test_another_version(self) -> None:
        """The file of another version of the hub is not dumped, and the message says why."""
        self.stop()
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA user_version = 4")
        error = self.assertRaises(CacheFailed, lambda: list(as_text(self.path)))
        self.assertIn("is of another version of yurthub (4)", str(error))

    def test_damaged(self) -> None:
        """A body that has changed on the disk is reported, and not written; all others are."""
        self.stop()
        self.path.write_bytes(self.path.read_bytes().replace(BODY, BODY.upper(), 1))
        error = self.assertRaises(CacheFailed, write_files, self.path, self.target)
        self.assertRegex(str(error), "the checksum of '(edge|a|b)' does not match")
        self.assertIn(f"; 2 objects are in {self.target}, 1 not", str(error))
        self.assertEqual(2, sum(path.is_file() for path in self.target.rglob("*")))

    def test_files(self) -> None:
        """Each object is a file with the format of the API's responses."""
        self.assertEqual(3, write_files(self.path, self.target))
        pod = self.target / "kubelet" / "pods.v1.core" / "default" / "a"
        self.assertEqual(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
            json.loads(pod.read_bytes()),
        )
        self.assertTrue((self.target / "kube-proxy owner" / "nodes.v1.core" / "edge").is_file())
        for path in (self.target, *self.target.rglob("*")):
            expected = 0o700 if path.is_dir() else 0o600
            self.assertEqual(expected, stat.S_IMODE(path.stat().st_mode), path)

    def test_hostile_names(self) -> None:
        """No name escapes from the directory, or contains control characters for a terminal."""
        names = ("..", ".", "a/b", "%2e", "a\0b", "\x1b[2J", "ü" * 200, "ü" * 201, "-rf")
        for name in names:
            collection = PODS._replace(client=name, resource=name, view=name)
            report_list(self.cache, [item(name, 1, name, BODY)], 5, Scope(collection))
            nodes = collection._replace(view="")
            self.cache.upsert(nodes, POD, item(name, 1, "", BODY))
        self.assertIsNotNone(self.read())
        before = {*self.directory.parent.iterdir()}
        self.assertEqual(3 + 2 * len(names), write_files(self.path, self.target))
        self.assertEqual(before | {self.target}, {*self.directory.parent.iterdir()} | {self.target})
        files = [path for path in self.target.rglob("*") if path.is_file()]
        self.assertEqual(3 + 2 * len(names), len(files))
        self.assertTrue("".join(as_text(self.path)).isprintable())

    def test_a_directory_that_is_there(self) -> None:
        """An existing directory is not written to."""
        self.target.mkdir()
        with self.assertRaises(FileExistsError):
            write_files(self.path, self.target)

    def test_a_pipe(self) -> None:
        """A named pipe, which nobody may ever write to, is not opened; nor are other specials."""
        pipe = Path(self.mktemp())
        os.mkfifo(pipe)
        for path in (pipe, Path("/dev/null")):
            error = self.assertRaises(CacheFailed, lambda path=path: list(as_text(path)))
            self.assertEqual(f"the cache {path} is not a plain file: remove it", str(error))

    def test_other_files(self) -> None:
        """A file that is not a cache is rejected with a message."""
        for content in (b"x" * 10_000, b""):
            other = Path(self.mktemp())
            other.write_bytes(content)
            with self.assertRaisesRegex(CacheFailed, str(other)):
                list(as_text(other))
