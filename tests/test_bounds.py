"""The constants of all packages: limits, timeouts, defaults, and numbers of formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.bounds import WRITTEN, bounds_of


class BoundsTests(SynchronousTestCase):
    """The constants of each package change only on purpose."""

    maxDiff = None


def _test_of(written: Path) -> Callable[[BoundsTests], None]:
    def test(self: BoundsTests) -> None:
        """Each constant is as recorded in bounds.txt, which ``python -m tests.bounds`` writes."""
        self.assertEqual(written.read_text(), bounds_of(written.parent.name))

    return test


for _file in WRITTEN:
    setattr(BoundsTests, f"test_{_file.parent.name}", _test_of(_file))
