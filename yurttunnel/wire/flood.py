"""Detection of floods: too many frames that cost work and carry little data."""

from __future__ import annotations

from typing import Final

from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation

FRAMES_PER_SECOND: Final = 100_000
"""The maximum number of frames other than DATA in a second. A legitimate peer sends at most an ACK
per 16 KiB, a CREDIT per 32 KiB and three frames per stream, so it would reach this only at 1 GB/s
together with 3,000 new streams a second. DATA is limited by credit, and is never empty."""

OPENINGS_PER_SECOND: Final = 10_000
"""The maximum number of streams that a peer opens in a second. Each needs an answer, which costs
far more than other frames, so a busy end would never receive :data:`FRAMES_PER_SECOND` of them."""

CANCELS_PER_SECOND: Final = 2_000
"""The maximum number of unanswered streams that a peer resets in a second ("rapid reset"), or twice
the number of streams that may be open if that is more: all open ones may be cancelled and, after a
pause, all that have replaced them."""


class FloodGuard:
    """Counts the frames of a peer in each second; the peer may open ``max_streams``."""

    def __init__(self, now: float, max_streams: int) -> None:
        self._second = now
        self._frames = 0
        self._openings = 0
        self._cancels = 0
        self._max_cancels = max(CANCELS_PER_SECOND, 2 * max_streams)

    def frame(self, now: float) -> None:
        """Count a frame other than DATA; raises :class:`Violation` if there are too many."""
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
        if self._cancels > self._max_cancels:
            raise Violation(Code.FLOOD, "too many streams opened and reset")
