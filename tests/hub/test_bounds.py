"""The numbers of the package."""

from __future__ import annotations

from tests.bounds import BoundsCase


class BoundsTests(BoundsCase):
    """Bounds, times, defaults, and numbers of formats."""

    package = "hub"

    def test_bounds(self) -> None:
        """Each is the one in bounds.txt, which ``python -m tests.bounds`` writes."""
        self.check()
