"""Programs of the fork server run as with ``python -m``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.fork_server import fork_server

PROGRAM = """
import faulthandler, sys, time, warnings
warnings.warn("resource", ResourceWarning)
print(faulthandler.is_enabled(), time.tzname, sys.argv[1:], repr(sys.stdin.read()))
"""


class ForkServerTests(SynchronousTestCase):
    """The effects of the environment."""

    def test_environment(self) -> None:
        """Variables that are read at the start of an interpreter have the same effects."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        (directory / "program.py").write_text(PROGRAM)
        environment = {
            **os.environ,
            "PYTHONWARNINGS": "default",
            "PYTHONFAULTHANDLER": "1",
            "TZ": "XYZ-3",
        }
        forked, usual = directory / "forked", directory / "usual"
        with forked.open("wb") as log:
            file = log.fileno()
            program = fork_server().start(["program", "a"], file, file, str(directory), environment)
        self.assertEqual(0, program.wait(60))
        with usual.open("wb") as log:
            subprocess.run(
                [sys.executable, "-m", "program", "a"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=environment,
                check=True,
            )
        self.assertIn("ResourceWarning", usual.read_text())
        self.assertEqual(usual.read_text(), forked.read_text())
