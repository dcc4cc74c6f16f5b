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

END = """
import atexit, socket, sys
from twisted.internet import defer, reactor
async def never_awaited(): pass
reactor.kept = [socket.socket(), never_awaited(), defer.fail(ValueError("never handled"))]
atexit.register(print, "at exit")
print("not flushed", end="")
sys.exit(0)
"""


class ForkServerTests(SynchronousTestCase):
    """What differs at the start and at the end of an interpreter."""

    def test_environment(self) -> None:
        """Variables that are read at the start of an interpreter have the same effects."""
        self.assertIn("ResourceWarning", self.same_output(PROGRAM))

    def test_end(self) -> None:
        """What a program leaves behind is reported at its end as by an interpreter of its own."""
        output = self.same_output(END)
        for part in ("at exit", "unclosed <socket", "never awaited", "never handled"):
            self.assertIn(part, output)

    def same_output(self, source: str) -> str:
        """Return the output of a program, which must be the same as with ``python -m``."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        (directory / "program.py").write_text(source)
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
        expected = usual.read_text()
        self.assertEqual(expected, forked.read_text())
        return expected
