"""The frequency of garbage collections, here and in the programs that tests start."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from unittest import TestResult

from twisted.trial.unittest import SynchronousTestCase

from tests import garbage
from tests.e2e.fork_server import fork_server
from tests.garbage import USUAL, WITHIN_A_TEST

PROGRAM = ["timeit", "-n1", "-r1", "-s", "import gc", "print(gc.get_threshold())"]
"""The command line of a module that prints the thresholds of its process."""


class GarbageTests(SynchronousTestCase):
    """Garbage collection in test processes and in others."""

    def test_where_tests_run(self) -> None:
        """Within a test full collections are rare; young objects are collected as usual."""
        # Python 3.14 has no such threshold and returns 0: its collections are incremental.
        self.assertEqual((*USUAL[:2], WITHIN_A_TEST if USUAL[2] else 0), gc.get_threshold())
        self.assertGreater(WITHIN_A_TEST, USUAL[2])

    def test_between_tests(self) -> None:
        """After a test a full collection runs if it is due, and not otherwise; its survivors are
        frozen.
        """
        done: list[str] = []
        count = garbage.BETWEEN_TESTS - 1
        self.patch(gc, "get_count", lambda: (0, 0, count))
        self.patch(gc, "collect", lambda: done.append("collect"))
        self.patch(gc, "freeze", lambda: done.append("freeze"))
        test = SynchronousTestCase("id")
        test.run(TestResult())
        self.assertEqual([], done)
        count += 1
        test.run(TestResult())
        self.assertEqual(["collect", "freeze"], done)

    def test_programs(self) -> None:
        """A program that tests start collects as often as a user's does."""
        output = Path(self.mktemp())
        with output.open("wb") as log:
            file = log.fileno()
            program = fork_server().start(PROGRAM, file, file, os.getcwd(), dict(os.environ))
        self.assertEqual(0, program.wait(60))
        self.assertEqual(str(USUAL), output.read_text().splitlines()[0])
