"""How often garbage is looked for, here and in the programs that tests start."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from unittest import TestResult

from twisted.trial.unittest import SynchronousTestCase

from tests import garbage
from tests.e2e.fork_server import fork_server
from tests.garbage import USUAL, WITHIN_A_TEST

TOLD = ["timeit", "-n1", "-r1", "-s", "import gc", "print(gc.get_threshold())"]
"""A module, and with what it prints how often its process looks."""


class GarbageTests(SynchronousTestCase):
    """Processes of tests, and others."""

    def test_where_tests_run(self) -> None:
        """Within a test all there is is hardly ever looked at, the young are as often as ever."""
        # Python 3.14 has no such number, which is 0: it looks at all by and by.
        self.assertEqual((*USUAL[:2], WITHIN_A_TEST if USUAL[2] else 0), gc.get_threshold())
        self.assertGreater(WITHIN_A_TEST, USUAL[2])

    def test_between_tests(self) -> None:
        """After a test it is, when it is due, and not before."""
        looked: list[int] = []
        count = garbage.BETWEEN_TESTS - 1
        self.patch(gc, "get_count", lambda: (0, 0, count))
        self.patch(gc, "collect", lambda: looked.append(count))
        test = SynchronousTestCase("id")
        test.run(TestResult())
        self.assertEqual([], looked)
        count += 1
        test.run(TestResult())
        self.assertEqual([count], looked)

    def test_programs(self) -> None:
        """A program that tests start looks as often as a user's does."""
        said = Path(self.mktemp())
        with said.open("wb") as log:
            program = fork_server().start(TOLD, log.fileno(), os.getcwd(), dict(os.environ))
        self.assertEqual(0, program.wait(60))
        self.assertEqual(str(USUAL), said.read_text().splitlines()[0])
