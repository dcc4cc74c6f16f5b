"""Pings: whether the peer is still there, whether it hears this side, and how far away it is."""

from __future__ import annotations

from collections import deque
from typing import Final

from yurttunnel.wire import frames

BUSY_DIVISOR: Final = 4
"""With streams open, pings are this much more frequent: somebody waits."""

IDLE_PATIENCE: Final = 1.5
BUSY_PATIENCE: Final = 2.0
"""A connection is dead when a ping has had no answer for this many ping intervals."""

ANSWER_PATIENCE: Final = 0.15
"""A connection is not in order when a ping has had no answer for this much of the interval, 1.5 s
at the default, and a round trip. The slowest answer, an ACK, takes 0.2 s. A peer with streams
that hears nothing gives up half an interval after a ping of its own; by then the first one that
it has missed is older than a quarter."""

SAMPLES: Final = 8


class Liveness:
    """The ping state of one session's connections.

    ``interval`` is in seconds: a ping goes out that often, and when no byte at all has come for
    :data:`IDLE_PATIENCE` of them after a ping, the connection counts as dead: 25 s after the
    last byte at the default of 10 s. With streams open the interval is a quarter of that, and a
    dead connection is found in 7.5 s. ``awaiting`` is when the first ping went out that nothing
    has been heard after; whoever receives bytes sets it to ``None``.

    That the peer is heard does not say that it hears this side. What says so are its answers: a
    PONG, or an ACK of more than before.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._number = 0
        self._sent_at: float | None = None
        self._last_ping = float("-inf")
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self.awaiting: float | None = None
        self.round_trip: float | None = None
        # When the first ping went out after which there was no answer.
        self._unanswered: float | None = None

    def connected(self) -> None:
        """Begin with a new connection; a first ping is due at once."""
        self.awaiting = self._unanswered = None
        self._last_ping = float("-inf")
        self._sent_at = None

    def deadline(self, busy: bool) -> float:
        """When to look again at :meth:`silent` and :meth:`ping`."""
        return min(self._ping_at(busy), self._dead_at(busy))

    def silent(self, now: float, busy: bool) -> bool:
        """Whether nothing has come for so long that the connection counts as dead.

        Told once: the owner may need a moment to get rid of the connection.
        """
        if now < self._dead_at(busy):
            return False
        self.awaiting = None
        return True

    def ping(self, now: float, busy: bool) -> bytes:
        """Give a PING frame if one is due, else nothing."""
        if now < self._ping_at(busy):
            return b""
        self._number += 1
        self._sent_at = self._last_ping = now
        if self.awaiting is None:
            self.awaiting = now
        if self._unanswered is None:
            self._unanswered = now
        return frames.offset_frame(frames.PING, 0, self._number)

    def pong(self, number: int, now: float) -> None:
        """Take a PONG; one that answers an earlier ping than the last says nothing of the time."""
        if 0 < number <= self._number:
            self.answered()
        if number == self._number and self._sent_at is not None:
            self._samples.append(now - self._sent_at)
            self._sent_at = None
            self.round_trip = min(self._samples)

    def answered(self) -> None:
        """Take note that what this side has sent arrives."""
        self._unanswered = None

    def in_order(self, now: float) -> bool:
        """Whether nothing speaks against it that what this side sends arrives."""
        if self._unanswered is None:
            return True
        patience = ANSWER_PATIENCE * self._interval + (self.round_trip or 0.0)
        return now < self._unanswered + patience

    def _ping_at(self, busy: bool) -> float:
        return self._last_ping + (self._interval / BUSY_DIVISOR if busy else self._interval)

    def _dead_at(self, busy: bool) -> float:
        if self.awaiting is None:
            return float("inf")
        patience = BUSY_PATIENCE / BUSY_DIVISOR if busy else IDLE_PATIENCE
        return self.awaiting + self._interval * patience
