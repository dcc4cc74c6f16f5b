"""Growth is detected in noisy samples."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.soak.slopes import slope


class SlopeTests(SynchronousTestCase):
    """:func:`tests.e2e.soak.slopes.slope`."""

    def test_growth(self) -> None:
        """The slope of a line is exact, and alternating noise changes it little."""
        self.assertAlmostEqual(slope([(when, 3.0 + 2.0 * when) for when in range(10)]), 2.0)
        noisy = [(when, 2.0 * when + (when % 2)) for when in range(100)]
        self.assertAlmostEqual(slope(noisy), 2.0, places=2)

    def test_level(self) -> None:
        """A constant has the slope zero."""
        self.assertEqual(slope([(0, 7.0), (1, 7.0), (5, 7.0)]), 0.0)

    def test_too_little(self) -> None:
        """Samples of a single time are rejected."""
        for samples in ([], [(1.0, 1.0)], [(1.0, 1.0), (1.0, 2.0)]):
            self.assertRaises(ValueError, slope, samples)
