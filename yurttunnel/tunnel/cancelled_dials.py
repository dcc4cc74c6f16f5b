"""Cancelled dials, which count against the share of their holder for a while longer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.tunnel.shares import Holder, Shares

CANCELLED_DIAL_HOLD = 1.0
"""The minimum time, in seconds, for which a stream that this end has reset before it was answered
counts against its holder's share. A peer treats too many such resets in a second as a flood
(:mod:`~yurttunnel.wire.flood`), and after a pause it receives those of several seconds at once. So
the stream also counts until the peer has acknowledged the reset: then the peer sees each place of a
share reset at most twice in a second."""


class CancelledDials:
    """The cancelled dials of one session, which still count in its ``shares``.

    They no longer count in the enclosing shares: those limit memory, which is freed at once, and
    the flood limit of one session's peer does not concern other sessions. ``acknowledged()`` is how
    much of this end's sequence the peer has acknowledged.
    """

    __slots__ = ("_acknowledged", "_call", "_clock", "_dials", "_shares")

    def __init__(
        self, clock: IReactorTime, shares: Shares, acknowledged: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._shares = shares
        self._acknowledged = acknowledged
        # (earliest release time, sequence position to be acknowledged, holder), oldest first.
        self._dials: deque[tuple[float, int, Holder]] = deque()
        self._call: IDelayedCall | None = None

    def add(self, holder: Holder, cancelled_at: int) -> None:
        """Hold the share of a stream whose RESET ends at the sequence position ``cancelled_at``."""
        self._shares.release_in_parents(holder)
        self._dials.append((self._clock.seconds() + CANCELLED_DIAL_HOLD, cancelled_at, holder))
        if self._call is None:
            self._call = self._clock.callLater(CANCELLED_DIAL_HOLD, self._release_due)

    def end(self) -> None:
        """Release all shares: the session has ended."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        while self._dials:
            self._shares.release_here(self._dials.popleft()[2])

    def _release_due(self) -> None:
        self._call = None
        dials, now, acknowledged = self._dials, self._clock.seconds(), self._acknowledged()
        while dials and dials[0][0] <= now and dials[0][1] <= acknowledged:
            self._shares.release_here(dials.popleft()[2])
        if dials:
            # If its time is over, it waits for the peer, which may be disconnected for long.
            left = dials[0][0] - now
            self._call = self._clock.callLater(
                left if left > 0 else CANCELLED_DIAL_HOLD, self._release_due
            )
