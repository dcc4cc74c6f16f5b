"""Pings: whether the peer is still there, and whether it hears this side."""

from __future__ import annotations

from typing import Final

BUSY_DIVISOR: Final = 4
"""With streams open, pings are this much more frequent: somebody waits."""

AHEAD: Final = 0.95
"""How many intervals an idle agent leaves between two pings: they come before the server would
have to ask."""

SELDOM: Final = 6
"""How many intervals an idle server that hears its agent leaves between two pings, which then are
for the round trip alone: its answers tell the agent that it is there. So thousands of agents cost
their server half as many reads and writes. It does not know whether it is heard itself, though,
before a stream is opened."""

GRID: Final = 1 / 32
"""How many intervals an idle server's deadlines are apart: those of thousands of sessions, by one
clock, then come together, and do not wake it up each."""

IDLE_PATIENCE: Final = 1.5
BUSY_PATIENCE: Final = 2.0
"""A connection is dead when a ping has had no answer for this many ping intervals."""

ANSWER_PATIENCE: Final = 0.15
"""A connection is not healthy when a ping has had no answer for this much of the interval, 1.5 s
at the default, and a round trip. The slowest answer, an ACK, takes 0.2 s. A peer with streams
that hears nothing gives up half an interval after a ping of its own; by then the first one that
it has missed is older than a quarter."""


class Liveness:
    """The ping state of one session's connections.

    ``interval`` is in seconds: a ping goes out that often, but where a server ``follows`` the pings
    of an idle agent. When no byte at all has come for :data:`IDLE_PATIENCE` intervals after a ping
    the connection counts as dead: 25 s after the last byte at the default of 10 s. With streams
    open the interval of both is a quarter of that, and a dead connection is found in 7.5 s.

    ``awaiting`` is when the first ping went out that nothing has been heard after. Whoever receives
    bytes sets it to ``None``, and ``heard_at`` to when that is.

    That the peer is heard does not say that it hears this side. What says so are its answers: a
    PONG, or an ACK of more than before.
    """

    def __init__(self, interval: float, follows: bool) -> None:
        self._interval = interval
        self._follows = follows
        self._last_ping = 0.0
        self.heard_at = 0.0
        self.awaiting: float | None = None
        # When the first ping went out after which there was no answer.
        self._unanswered: float | None = None

    def connected(self, now: float) -> None:
        """Begin with a new connection; a first ping is due at once."""
        self.awaiting = self._unanswered = None
        self.heard_at = now
        # So long ago that one is due.
        self._last_ping = now - self._interval * SELDOM

    def deadline(self, busy: bool) -> float:
        """When to look again at :meth:`silent` and :meth:`is_ping_due`."""
        return min(self._ping_at(busy), self._dead_at(busy))

    def silent(self, now: float, busy: bool) -> bool:
        """Whether nothing has come for so long that the connection counts as dead.

        Told once: the owner may need a moment to get rid of the connection.
        """
        if now < self._dead_at(busy):
            return False
        self.awaiting = None
        return True

    def is_ping_due(self, now: float, busy: bool) -> bool:
        """Return whether it is time for a PING."""
        return now >= self._ping_at(busy)

    def pinged(self, now: float) -> None:
        """Take note of a PING that is sent, due or not."""
        self._last_ping = now
        if self.awaiting is None:
            self.awaiting = now
        if self._unanswered is None:
            self._unanswered = now

    def answered(self) -> None:
        """Take note that what this side has sent arrives."""
        self._unanswered = None

    def in_order(self, now: float, round_trip: float) -> bool:
        """Whether nothing speaks against it that what this side sends arrives."""
        if self._unanswered is None:
            return True
        return now < self._unanswered + ANSWER_PATIENCE * self._interval + round_trip

    def _ping_at(self, busy: bool) -> float:
        if busy:
            return self._last_ping + self._interval / BUSY_DIVISOR
        if not self._follows:
            return self._last_ping + self._interval * AHEAD
        silent_from = max(self._last_ping, self.heard_at)
        due = min(silent_from + self._interval, self._last_ping + self._interval * SELDOM)
        return due - due % (self._interval * GRID)

    def _dead_at(self, busy: bool) -> float:
        if self.awaiting is None:
            return float("inf")
        patience = BUSY_PATIENCE / BUSY_DIVISOR if busy else IDLE_PATIENCE
        return self.awaiting + self._interval * patience
