"""The conformance list of the specification and the tests agree."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import tests.wire
from tests.wire.conformance import SHOWN_BY, conformance

SPECIFICATION = Path(__file__).parents[2] / "docs" / "protocol.md"
CASE = re.compile(r"^- \*\*(C-\d{3})\*\* (.+)$", re.MULTILINE)


class ConformanceListTests(SynchronousTestCase):
    """Each case has a test, and each case that a test names exists."""

    def setUp(self) -> None:
        """Read the list, and import all tests to collect the cases that they name."""
        self.cases = CASE.findall(SPECIFICATION.read_text())
        for module in pkgutil.iter_modules(tests.wire.__path__):
            importlib.import_module(f"tests.wire.{module.name}")

    def test_every_case_has_a_test(self) -> None:
        """Every case of the list is named by a test."""
        self.assertEqual([], [number for number, _ in self.cases if number not in SHOWN_BY])

    def test_every_named_case_exists(self) -> None:
        """Every case that a test names is in the list."""
        self.assertEqual([], sorted(set(SHOWN_BY) - {number for number, _ in self.cases}))

    def test_numbers(self) -> None:
        """The cases are numbered from C-001 without gaps, and there are at least a hundred."""
        expected = [f"C-{number:03}" for number in range(1, len(self.cases) + 1)]
        self.assertEqual(expected, [number for number, _ in self.cases])
        self.assertGreaterEqual(len(self.cases), 100)

    def test_sentences(self) -> None:
        """Every case is a sentence."""
        self.assertEqual([], [text for _, text in self.cases if not text.endswith(".")])

    def test_marked_tests_are_found(self) -> None:
        """A marker records the name of its test."""

        @conformance()
        def marked() -> str:
            return "unchanged"

        self.assertEqual("unchanged", marked())
        for tests_of_case in SHOWN_BY.values():
            for name in tests_of_case:
                self.assertIn(".test_", name)
