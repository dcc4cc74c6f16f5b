"""Kills of the process, and power failures, while a list is replaced."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from twisted.internet.task import Clock

from tests.hub.cache.caches import item, make_cache, report_list
from tests.hub.cache.test_store import CacheTestCase
from yurttunnel.hub.cache.connection import connect

OBJECTS = 1_000
BODY = 300
"""In bytes."""

KILLS = 10
POINTS = 40

PROGRAM = """
import sys
from pathlib import Path
from twisted.internet.task import Clock
from tests.hub.cache.caches import make_cache
from tests.hub.cache.test_kill import replace
clock = Clock()
cache = make_cache(Path(sys.argv[1]), clock)
cache.startService()
for version in range(int(sys.argv[2]), 1_000_000):
    replace(cache, clock, version)
    print(version, flush=True)
"""
"""Prints each version that is on disk."""


def replace(cache, clock, version: int) -> None:
    """Replace all objects: each version has objects of its own, and new versions of others."""
    names = (f"pod-{number + version % 2}" for number in range(OBJECTS))
    report_list(
        cache, [item(name, version, body=b"%d " % version * BODY) for name in names], version
    )
    clock.advance(1)


class SetsTestCase(CacheTestCase):
    """The stored objects are exactly one of the sets that were written."""

    def version(self) -> int:
        """Return which set is stored."""
        meta, complete, items = self.read()
        version = int(meta.version)
        names = {f"pod-{number + version % 2}" for number in range(OBJECTS)}
        self.assertEqual((True, names), (complete, {each.name for each in items}))
        self.assertEqual(
            {(str(version), b"%d " % version * BODY)}, {(each.version, each.body) for each in items}
        )
        return version


class KillTests(SetsTestCase):
    """Kills of the process."""

    def test_killed_any_time(self) -> None:
        """A killed process has lost nothing that it had reported as written."""
        self.stop()
        chance = random.Random(14)
        said = 0
        for _ in range(KILLS):
            child = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, self.directory, str(said + 1)],
                stdout=subprocess.PIPE,
            )
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 5)):
                said = int(child.stdout.readline())
            # Somewhere in the next write, which takes about 20 ms.
            try:
                child.wait(chance.uniform(0, 0.03))
            except subprocess.TimeoutExpired:
                child.kill()
            last = child.communicate()[0].split()
            self.assertEqual(-signal.SIGKILL, child.returncode)
            said = int(last[-1]) if last else said
            self.restart()
            found = self.version()
            self.assertIn(found, (said, said + 1))
            self.stop()
            said = found

    def test_killed_at_each_step(self) -> None:
        """The same applies at each step of the transaction."""
        replace(self.cache, self.clock, 1)
        self.assertEqual(1, self.version())
        self.stop()
        steps = self.killed_after(0)
        old = new = 0
        for point in range(1, POINTS + 1):
            self.killed_after(1 + steps * point // POINTS)
            self.restart()
            version = self.version()
            old += version == 1
            new += version == 2
            replace(self.cache, self.clock, 3)
            self.stop()
            self.renew()
        self.assertEqual(POINTS, old + new)
        self.assertGreater(old, POINTS // 2)

    def renew(self) -> None:
        """Write the first set again, to a new file."""
        shutil.rmtree(self.directory)
        self.restart()
        replace(self.cache, self.clock, 1)
        self.stop()

    def killed_after(self, steps: int) -> int:
        """Run a process that replaces the set and kills itself after that many steps of SQLite.

        Return the number of steps if it does not kill itself (0); the first set is stored
        afterwards.
        """
        copy = self.directory.with_name("copy")
        shutil.copytree(self.directory, copy)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                taken = _replace_in_steps(copy if not steps else self.directory, steps)
                os.write(writer, b"%d" % taken)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            taken = int(pipe.read() or b"0")
        os.waitpid(child, 0)
        shutil.rmtree(copy)
        return taken


def _replace_in_steps(directory: Path, most: int) -> int:
    """Replace the first set with the second; return the number of steps."""
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken == most:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(uri: str):
        connection = connect(uri)
        connection.set_progress_handler(step, 100)
        return connection

    clock = Clock()
    cache = make_cache(directory, clock, connect=counted)
    cache.startService()
    replace(cache, clock, 2)
    return taken


class PowerTests(SetsTestCase):
    """The state of the log on disk after a power failure."""

    def test_the_log_is_cut(self) -> None:
        """The old or the new set is stored, wherever the log ends, and whatever follows."""
        replace(self.cache, self.clock, 1)
        self.stop()
        self.restart()
        replace(self.cache, self.clock, 2)
        kept = self.directory.with_name("kept")
        shutil.copytree(self.directory, kept)
        self.stop()
        log = (kept / "cache.db-wal").read_bytes()
        found = []
        for cut in [*range(0, len(log), len(log) // POINTS), len(log)]:
            for rest in (b"", bytes(len(log) - cut), random.Random(cut).randbytes(len(log) - cut)):
                shutil.rmtree(self.directory)
                shutil.copytree(kept, self.directory)
                (self.directory / "cache.db-shm").unlink()
                (self.directory / "cache.db-wal").write_bytes(log[:cut] + rest)
                self.restart()
                found.append(self.version())
                self.assertEqual(0, self.cache.stats.damaged)
                self.stop()
        self.assertEqual({1, 2}, set(found))
        self.assertEqual(2, found[-1])
