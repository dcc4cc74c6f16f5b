"""Hanging tests, in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parent.parent

SCRIPT = """
import signal, sys, time, unittest
from tests import watchdog
from twisted.trial.unittest import SynchronousTestCase

watchdog.MAX_SECONDS, watchdog.GRACE = 0.2, 0.2

class HangingTests(SynchronousTestCase):
    def test_a_loop(self):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass

    def test_deaf(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        self.test_a_loop()

    def test_quick(self):
        pass

result = unittest.TestResult()
unittest.TestSuite(map(HangingTests, sys.argv[1:])).run(result)
for test, text in result.errors:
    print(test.id(), text)
print(result.testsRun, "ran")
"""


class WatchdogTests(SynchronousTestCase):
    """The handling of a hanging test, and of the tests after it."""

    def run_tests(self, *names: str) -> subprocess.CompletedProcess[str]:
        """Run tests of the script, which must exit by itself."""
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, *names],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    def test_a_loop(self) -> None:
        """A hanging test fails with its name and its stack, and the next one runs."""
        ran = self.run_tests("test_a_loop", "test_quick")
        self.assertIn("HangingTests.test_a_loop was still running after 0.2 s", ran.stdout)
        self.assertIn(", in test_a_loop\n", ran.stdout)
        self.assertTrue(ran.stdout.endswith("\n2 ran\n"), ran.stdout)

    def test_where_no_signal_arrives(self) -> None:
        """If the signal is blocked, the process exits, and its standard error has the stack."""
        ran = self.run_tests("test_deaf", "test_quick")
        self.assertEqual((1, ""), (ran.returncode, ran.stdout))
        self.assertIn("in test_deaf", ran.stderr)

    def test_in_time(self) -> None:
        """A test that ends in time is not affected."""
        ran = self.run_tests("test_quick")
        self.assertEqual((0, "1 ran\n", ""), (ran.returncode, ran.stdout, ran.stderr))
