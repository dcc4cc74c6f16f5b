"""The scheduling of tests that run in several processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twisted.trial.unittest import TestCase

from tests.e2e import scheduling
from tests.e2e.scheduling import Concurrency

HOLDER = """
import runpy, sys
module = runpy.run_path(sys.argv[1])
with module["acquire_slot"](module["Concurrency"][sys.argv[2]]):
    print("in", flush=True)
    sys.stdin.read()
"""

SECONDS = 20.0
"""The timeout in seconds until a process has its slot, or waits for it."""


class SchedulingTests(TestCase):
    """Two processes, each of which acquires a slot."""

    def setUp(self) -> None:
        """Make a directory for the locks, separate from those of this run."""
        self.directory = tempfile.mkdtemp()

    def hold(self, kind: Concurrency) -> subprocess.Popen:
        """Start a process that acquires a slot, and keeps it until its input ends."""
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, scheduling.__file__, kind.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"TMPDIR": self.directory},
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def waits(self, process: subprocess.Popen) -> bool:
        """Whether the process waits for its slot, or else has it."""
        deadline = time.monotonic() + SECONDS
        desired = f" {process.pid} "
        while time.monotonic() < deadline:
            locks = Path("/proc/locks").read_text().splitlines()
            mine = [line for line in locks if " POSIX " in line and desired in line]
            if mine:
                return "->" in mine[0]
            time.sleep(0.01)
        raise self.failureException("the process does not ask for its turn")

    def test_concurrency(self) -> None:
        """Shared tests run concurrently, measuring ones do, and any other two one after the
        other.
        """
        for first in Concurrency:
            for second in Concurrency:
                with self.subTest(first=first, second=second):
                    holder = self.hold(first)
                    self.assertFalse(self.waits(holder))
                    other = self.hold(second)
                    together = first is second and first is not Concurrency.EXCLUSIVE
                    self.assertEqual(self.waits(other), not together)
                    for process in (holder, other):
                        self.assertEqual(process.communicate(timeout=SECONDS)[0], b"in\n")
