"""The table of faults in testing.md names tests that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

DOCUMENT = Path(__file__).parents[3] / "docs" / "testing.md"
ROW = re.compile(r"^\| (?!fault \||-)([^|]+) \| ([^|]+) \| ([^|]*) ?\|$", re.MULTILINE)
NAME = re.compile(r"`(tests\.[\w.]+)\.([A-Z]\w+)(?:\.(test_\w+))?`")

FAULTS = 30
"""So many rows the table has at least."""


class FaultTableTests(SynchronousTestCase):
    """Each row names its tests."""

    def setUp(self) -> None:
        """Read the table."""
        section = DOCUMENT.read_text().partition("\n## Faults\n")[2].partition("\n## ")[0]
        self.rows = ROW.findall(section)

    def test_every_fault_has_a_test(self) -> None:
        """Every row has a test, and no test is missing."""
        self.assertGreaterEqual(len(self.rows), FAULTS)
        for fault, shown_by, _ in self.rows:
            names = shown_by.split("<br>")
            self.assertEqual(len(NAME.findall(shown_by)), len(names), fault)

    def test_every_named_test_exists(self) -> None:
        """Each named test is a test class or a test."""
        for fault, shown_by, _ in self.rows:
            for module, case, test in NAME.findall(shown_by):
                named = getattr(importlib.import_module(module), case, None)
                self.assertIsNotNone(named, f"{fault}: {module}.{case}")
                tests = [name for name in dir(named) if name.startswith("test_")]
                self.assertTrue(tests, f"{fault}: {module}.{case} has no test")
                if test:
                    self.assertIn(test, tests, fault)
