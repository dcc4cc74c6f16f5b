"""The collection of warnings by trial, which the package of the tests makes cheaper."""

from __future__ import annotations

import warnings
from unittest import TestResult

from twisted.trial.unittest import SynchronousTestCase


class WarningTests(SynchronousTestCase):
    """A warning that Python shows once by default."""

    def test_each_test_collects_it(self) -> None:
        """A test collects a warning that earlier tests have collected."""
        collected: list[str] = []

        class Emitting(SynchronousTestCase):
            def runTest(self) -> None:
                warnings.warn("of this line", UserWarning, stacklevel=1)
                collected.extend(each["message"] for each in self.flushWarnings())

        for _ in range(2):
            Emitting().run(TestResult())
        self.assertEqual(["of this line"] * 2, collected)
