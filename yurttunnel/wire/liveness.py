"""Pings: whether the peer is still there, and whether it hears this side."""

from __future__ import annotations

from typing import Final

BUSY_DIVISOR: Final = 4
"""With streams open, pings are this much more frequent: somebody waits."""

AHEAD: Final = 0.95
"""How many intervals an idle server leaves between two pings: they come before the agent would
have to ask."""

GRID: Final = 1 / 128
"""How many intervals the pings of idle sessions are apart: those of thousands of a server, by one
clock, then go out together, and their answers come together, so that not each one wakes it up."""

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

    ``interval`` is in seconds: a ping goes out that often, but an agent ``follows``: as long as it
    hears an idle server it sends none, since its answers tell that it is there. So thousands of
    agents cost their server half as many reads and writes. When no byte at all has come for
    :data:`IDLE_PATIENCE` intervals after a ping the connection counts as dead: 25 s after the last
    byte at the default of 10 s. With streams open the interval of both is a quarter of that, and a
    dead connection is found in 7.5 s.

    ``awaiting`` is when the first ping went out that nothing has been heard after. Whoever receives
    bytes sets it to ``None``, and ``heard_at`` to when that is.

    That the peer is heard does not say that it hears this side. What says so are its answers: a
    PONG, or an ACK of more than before.
    """

    def __init__(self, interval: float, follows: bool) -> None:
        self._interval = interval
        self._follows = follows
        # On this connection; before the first one that is due at once.
        self._last_ping: float | None = None
        self.heard_at = 0.0
        self.awaiting: float | None = None
        # When the first ping went out after which there was no answer.
        self._unanswered: float | None = None

    def connected(self, now: float) -> None:
        """Begin with a new connection; a first ping is due at once."""
        self.awaiting = self._unanswered = None
        self.heard_at = now
        self._last_ping = None

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
        if self._last_ping is None:
            return float("-inf")
        if busy:
            return self._last_ping + self._interval / BUSY_DIVISOR
        if self._follows:
            due = max(self._last_ping, self.heard_at) + self._interval
        else:
            due = self._last_ping + self._interval * AHEAD
        return due - due % (self._interval * GRID)

    def _dead_at(self, busy: bool) -> float:
        if self.awaiting is None:
            return float("inf")
        patience = BUSY_PATIENCE / BUSY_DIVISOR if busy else IDLE_PATIENCE
        return self.awaiting + self._interval * patience
