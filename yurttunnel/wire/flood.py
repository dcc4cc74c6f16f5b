"""What no honest peer needs: too many frames that cost work and carry little."""

from __future__ import annotations

from typing import Final

from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation

FRAMES_PER_SECOND: Final = 100_000
"""More frames other than DATA than this in a second are a flood. An honest peer sends an ACK
each 16 KiB at most, a CREDIT each 32 KiB and three frames a stream: 1 GB/s and 3,000 new streams
a second would be needed at once. DATA is bounded by credit, and is never empty."""

OPENINGS_PER_SECOND: Final = 10_000
"""More streams opened than this in a second are a flood. Each costs an answer, far more than what
else a frame costs, so that a busy end would never see :data:`FRAMES_PER_SECOND` of them."""

CANCELS_PER_SECOND: Final = 2_000
"""More unanswered streams reset than this in a second are a flood ("rapid reset"), or than twice
as many as may be open, where that is more: all that were may be given up, and, after a pause, all
that came in their place."""


class FloodGuard:
    """Counts what a peer sends, second by second, which may have ``max_streams`` open."""

    def __init__(self, now: float, max_streams: int) -> None:
        self._second = now
        self._frames = 0
        self._openings = 0
        self._cancels = 0
        self._most_cancels = max(CANCELS_PER_SECOND, 2 * max_streams)

    def frame(self, now: float) -> None:
        """Count a frame other than DATA; raises :class:`Violation` when there are too many."""
        if now - self._second >= 1:
            self._second = now
            self._frames = self._openings = self._cancels = 0
        self._frames += 1
        if self._frames > FRAMES_PER_SECOND:
            raise Violation(Code.FLOOD, "too many frames without data")

    def opening(self) -> None:
        """Count a stream that the peer opens; raises :class:`Violation` likewise."""
        self._openings += 1
        if self._openings > OPENINGS_PER_SECOND:
            raise Violation(Code.FLOOD, "too many streams opened")

    def cancel(self) -> None:
        """Count a stream reset before its answer; raises :class:`Violation` likewise."""
        self._cancels += 1
        if self._cancels > self._most_cancels:
            raise Violation(Code.FLOOD, "too many streams opened and reset")
