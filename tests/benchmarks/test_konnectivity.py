"""The search for Konnectivity's programs."""

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.konnectivity import VARIABLE, konnectivity_programs
from benchmarks.processes import BenchmarkFailed


class ProgramsTests(SynchronousTestCase):
    """Search by environment variables."""

    def directory(self, *names):
        """Create a directory with programs of these names."""
        directory = Path(self.mktemp())
        directory.mkdir()
        for name in names:
            (directory / name).touch(0o755)
        return str(directory)

    def found(self, path, variable=None):
        """Return the names of the found programs."""
        self.patch(os, "environ", {"PATH": path} | ({VARIABLE: variable} if variable else {}))
        programs = konnectivity_programs()
        return programs and tuple(Path(each).name for each in programs)

    def test_programs_in_path_take_part(self):
        """They are found without a variable."""
        self.assertEqual(
            self.found(self.directory("proxy-server", "proxy-agent")),
            ("proxy-server", "proxy-agent"),
        )

    def test_the_variable_names_their_directory(self):
        """There they may also have the names from their build."""
        self.assertEqual(
            self.found("/nowhere", self.directory("server", "agent")), ("server", "agent")
        )

    def test_without_them_nothing_takes_part(self):
        """A program ``server`` in PATH is another one."""
        self.assertIsNone(self.found(self.directory("server", "agent")))

    def test_a_directory_without_them_is_an_error(self):
        """A configured directory means that they must be measured."""
        error = self.assertRaises(BenchmarkFailed, self.found, "/nowhere", self.directory())
        self.assertIn("has no proxy-server", str(error))
