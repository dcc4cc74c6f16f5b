"""How often garbage is looked for, here and in the programs that tests start."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.fork_server import fork_server
from tests.garbage import FULL, USUAL

TOLD = ["timeit", "-n1", "-r1", "-s", "import gc", "print(gc.get_threshold())"]
"""A module, and with what it prints how often its process looks."""


class GarbageTests(SynchronousTestCase):
    """Processes of tests, and others."""

    def test_where_tests_run(self) -> None:
        """All there is is looked at less often than Python does by itself, the young are not."""
        # Python 3.14 has no such number, which is 0: it looks at all by and by.
        self.assertEqual((*USUAL[:2], FULL if USUAL[2] else 0), gc.get_threshold())
        self.assertGreater(FULL, USUAL[2])

    def test_programs(self) -> None:
        """A program that tests start looks as often as a user's does."""
        said = Path(self.mktemp())
        with said.open("wb") as log:
            program = fork_server().start(TOLD, log.fileno(), os.getcwd(), dict(os.environ))
        self.assertEqual(0, program.wait(60))
        self.assertEqual(str(USUAL), said.read_text().splitlines()[0])
