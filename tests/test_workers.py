"""Which process of ``trial -jN`` runs a test, and when."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parent.parent

SCRIPT = """
import sys
sys.path[:0] = [{root!r}, "."]
from tests import workers
from twisted.scripts.trial import run
workers.PROGRAMS, workers.ALONE = "test_program", ("test_program_quiet.", "test_program_alone.")
run()
"""

MODULE = """
import os, signal
from twisted.trial.unittest import SynchronousTestCase

IMPORTED_BY = os.getpid()

class Tests(SynchronousTestCase):
    def tearDown(self):
        with open({notes!r}, "a") as notes:
            notes.write(f"{{self.id()}} {{os.getpid()}} {{IMPORTED_BY == os.getppid()}}\\n")
    def test_1(self):
        pass
    def test_2(self):
        {body}
    def test_3(self):
        pass
"""

FAILS = 'self.fail("as expected")'
DIES = "os.kill(os.getpid(), signal.SIGKILL)"


class WorkerTests(SynchronousTestCase):
    """Three workers of trial run some modules of three tests each."""

    def run_tests(self, *options: str, **modules: str) -> tuple[str, list[list[str]]]:
        """Run modules whose second test is as given; return the last line of trial, and the name of
        each test that has ended, its process, and whether that is a child of the importing one.
        """
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        notes = Path(directory.name, "notes")
        for name, body in modules.items():
            text = MODULE.format(notes=str(notes), body=body)
            Path(directory.name, f"{name}.py").write_text(text)
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(root=str(ROOT)), "-j3", *options, *modules],
            cwd=directory.name,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        (result,) = re.findall("^(?:PASSED|FAILED).*", ran.stdout, re.MULTILINE)
        self.assertEqual(result.startswith("FAILED"), ran.returncode)
        return result, [line.split() for line in notes.read_text().splitlines()]

    def test_distribution(self) -> None:
        """Tests that run beside each other precede those that run alone, and these all others; a
        module has one worker, unless it runs programs.
        """
        first = ("test_program_quiet", "test_program_alone")
        names = ("test_a", "test_b", "test_c", "test_program", *sorted(first))
        result, ran = self.run_tests(**dict.fromkeys(names, "pass"))
        self.assertEqual("PASSED (successes=18)", result)
        tests = [f"{name}.Tests.test_{number}" for name in names for number in (1, 2, 3)]
        self.assertEqual(tests, sorted(name for name, _, _ in ran))
        self.assertEqual({"True"}, {forked for _, _, forked in ran})
        for at, module in zip((0, 3), first, strict=True):
            self.assertEqual({module}, {name.split(".")[0] for name, _, _ in ran[at : at + 3]})
        places = {(name.split(".")[0], pid) for name, pid, _ in ran}
        for module in names[:3]:
            self.assertEqual(1, sum(name == module for name, _ in places))

    def test_failure(self) -> None:
        """A failure is counted, and the other tests run."""
        result, ran = self.run_tests(test_a=FAILS, test_program="pass")
        self.assertEqual("FAILED (failures=1, successes=5)", result)
        self.assertEqual(6, len(ran))

    def test_until_the_first_failure(self) -> None:
        """With ``-x`` no test starts after a failure, even of the same module."""
        result, ran = self.run_tests("-x", test_a=FAILS)
        self.assertEqual("FAILED (failures=1, successes=1)", result)
        self.assertEqual(2, len(ran))

    def test_death_of_a_worker(self) -> None:
        """The test in which its worker dies fails, as do those of its module; others run."""
        names = ("test_b", "test_c", "test_d", "test_e")
        result, ran = self.run_tests(test_a=DIES, **dict.fromkeys(names, "pass"))
        self.assertEqual("FAILED (errors=2, successes=13)", result)
        self.assertEqual(13, len(ran))
