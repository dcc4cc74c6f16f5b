"""Detection of floods."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from yurttunnel.wire.codes import Code
from yurttunnel.wire.flood import (
    CANCELS_PER_SECOND,
    FRAMES_PER_SECOND,
    OPENINGS_PER_SECOND,
    FloodGuard,
)
from yurttunnel.wire.frames import Violation


class FloodGuardTests(SynchronousTestCase):
    """Frames, openings and resets are counted per second."""

    def setUp(self) -> None:
        """Start at a time other than 0."""
        self.guard = FloodGuard(100.0, 1000)

    def frames(self, count: int, now: float) -> None:
        """Count a number of frames."""
        for _ in range(count):
            self.guard.frame(now)

    @conformance("C-127")
    def test_frames(self) -> None:
        """The maximum number of frames is accepted in each second, and one more is a flood."""
        self.frames(FRAMES_PER_SECOND, 100.5)
        self.frames(FRAMES_PER_SECOND, 101.0)
        violation = self.assertRaises(Violation, self.guard.frame, 101.999)
        self.assertEqual(Code.FLOOD, violation.code)

    @conformance("C-137")
    def test_openings(self) -> None:
        """Opened streams are counted separately, and reset each second."""
        for second in (100.0, 101.0):
            self.guard.frame(second)
            for _ in range(OPENINGS_PER_SECOND):
                self.guard.opening()
        violation = self.assertRaises(Violation, self.guard.opening)
        self.assertEqual(Code.FLOOD, violation.code)

    @conformance("C-128")
    def test_cancels(self) -> None:
        """Resets are counted separately, and reset each second."""
        for second in (100.0, 101.0):
            self.guard.frame(second)
            for _ in range(CANCELS_PER_SECOND):
                self.guard.cancel()
        violation = self.assertRaises(Violation, self.guard.cancel)
        self.assertEqual(Code.FLOOD, violation.code)

    @conformance("C-128")
    def test_cancels_of_many_streams(self) -> None:
        """Twice the maximum number of open streams may be reset, if that is more."""
        self.guard = FloodGuard(100.0, CANCELS_PER_SECOND)
        for _ in range(2 * CANCELS_PER_SECOND):
            self.guard.cancel()
        violation = self.assertRaises(Violation, self.guard.cancel)
        self.assertEqual(Code.FLOOD, violation.code)
