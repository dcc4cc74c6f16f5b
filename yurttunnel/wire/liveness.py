"""PINGs: whether the peer is alive, and whether it receives data from this side."""

from __future__ import annotations

from typing import Final

BUSY_DIVISOR: Final = 4
"""The factor by which PINGs are more frequent while streams are open, because users wait."""

IDLE_PING_FACTOR: Final = 0.95
"""The time between two PINGs of an idle server, in intervals: less than 1, so that they arrive
before the agent has to send one."""

PING_GRANULARITY: Final = 1 / 128
"""The granularity of PING times of idle sessions, in intervals. With one grid, the PINGs of a
server's thousands of sessions are sent together and their answers arrive together, so that it is
not woken up for each."""

IDLE_TIMEOUT: Final = 1.5
BUSY_TIMEOUT: Final = 2.0
"""A connection is dead if nothing is received for this many PING intervals after a PING."""

ANSWER_TIMEOUT: Final = 0.15
"""A connection is unhealthy if a PING is unanswered for this fraction of the interval (1.5 s by
default) plus a round trip. The slowest answer, an ACK, takes 0.2 s. A peer with open streams that
receives nothing drops the connection half an interval after its own PING; by then the first PING
that it has missed is older than a quarter."""


class Liveness:
    """The PING state of one session's connections.

    ``interval`` is the time between PINGs in seconds. An agent ``follows``: while it receives from
    an idle server it sends no PINGs, because its PONGs show that it is alive. So thousands of
    agents cost their server only half as many reads and writes. If no byte arrives for
    :data:`IDLE_TIMEOUT` intervals after a PING, the connection is dead: 25 s after the last byte,
    with the default of 10 s. While streams are open the interval of both sides is a quarter, and a
    dead connection is detected in 7.5 s.

    ``awaiting`` is the time of the first PING after which nothing was received. The receiver of
    bytes sets it to ``None``, and ``last_received`` to the current time.

    Received data does not prove that the peer receives data from this side. Only its answers do: a
    PONG, or an ACK with a higher position.
    """

    def __init__(self, interval: float, follows: bool) -> None:
        self._interval = interval
        self._follows = follows
        # The time of the last PING on this connection; None before the first, which is due at once.
        self._last_ping: float | None = None
        self.last_received = 0.0
        self.awaiting: float | None = None
        # The time of the first PING without an answer since.
        self._unanswered: float | None = None

    def connected(self, now: float) -> None:
        """Reset the state for a new connection; the first PING is due at once."""
        self.awaiting = self._unanswered = None
        self.last_received = now
        self._last_ping = None

    def deadline(self, busy: bool) -> float:
        """Return when to check :meth:`silent` and :meth:`is_ping_due` again."""
        return min(self._ping_at(busy), self._dead_at(busy))

    def silent(self, now: float, busy: bool) -> bool:
        """Return whether nothing was received for so long that the connection is dead.

        Returns true only once, because the owner may need some time to drop the connection.
        """
        if now < self._dead_at(busy):
            return False
        self.awaiting = None
        return True

    def is_ping_due(self, now: float, busy: bool) -> bool:
        """Return whether a PING is due."""
        return now >= self._ping_at(busy)

    def pinged(self, now: float) -> None:
        """Record that a PING is sent, due or not."""
        self._last_ping = now
        if self.awaiting is None:
            self.awaiting = now
        if self._unanswered is None:
            self._unanswered = now

    def answered(self) -> None:
        """Record an answer: data sent by this side arrives."""
        self._unanswered = None

    def is_healthy(self, now: float, round_trip: float) -> bool:
        """Return whether the connection is healthy: no PING has been unanswered for too long."""
        if self._unanswered is None:
            return True
        return now < self._unanswered + ANSWER_TIMEOUT * self._interval + round_trip

    def _ping_at(self, busy: bool) -> float:
        if self._last_ping is None:
            return float("-inf")
        if busy:
            return self._last_ping + self._interval / BUSY_DIVISOR
        if self._follows:
            due = max(self._last_ping, self.last_received) + self._interval
        else:
            due = self._last_ping + self._interval * IDLE_PING_FACTOR
        return due - due % (self._interval * PING_GRANULARITY)

    def _dead_at(self, busy: bool) -> float:
        if self.awaiting is None:
            return float("inf")
        timeout = BUSY_TIMEOUT / BUSY_DIVISOR if busy else IDLE_TIMEOUT
        return self.awaiting + self._interval * timeout
