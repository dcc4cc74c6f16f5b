"""Dials that this end has given up unanswered: each is of its holder's share for a while more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.tunnel.shares import Holder, Shares

GIVEN_UP_HELD = 1.0
"""Seconds for which a stream that this end has given up unanswered is still of its holder's share,
at least. A peer takes too many of these in a second for a flood (:mod:`~yurttunnel.wire.flood`),
and after a pause those of several seconds come to it together. So each share lasts until the peer
has acknowledged that, too: then none comes back to it more than twice in a second."""


class GivenUpDials:
    """The dials that are given up in one session, and count in its ``shares``.

    They count no more in what those are a part of: that is memory, which is free at once, and what
    the peer of one session sees is no matter of the others. ``acknowledged()`` is how much of this
    end's sequence the peer has.
    """

    __slots__ = ("_acknowledged", "_call", "_clock", "_given_up", "_shares")

    def __init__(
        self, clock: IReactorTime, shares: Shares, acknowledged: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._shares = shares
        self._acknowledged = acknowledged
        # Until when, and until what is acknowledged, whose share each is of: in this order.
        self._given_up: deque[tuple[float, int, Holder]] = deque()
        self._call: IDelayedCall | None = None

    def add(self, holder: Holder, given_up_at: int) -> None:
        """Hold the share of a stream whose RESET ends ``given_up_at``."""
        self._shares.give_back_outside(holder)
        self._given_up.append((self._clock.seconds() + GIVEN_UP_HELD, given_up_at, holder))
        if self._call is None:
            self._call = self._clock.callLater(GIVEN_UP_HELD, self._look)

    def end(self) -> None:
        """Give all back: the session is over."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        while self._given_up:
            self._shares.give_back_here(self._given_up.popleft()[2])

    def _look(self) -> None:
        self._call = None
        given_up, now, acknowledged = self._given_up, self._clock.seconds(), self._acknowledged()
        while given_up and given_up[0][0] <= now and given_up[0][1] <= acknowledged:
            self._shares.give_back_here(given_up.popleft()[2])
        if given_up:
            # One whose time is over waits for its peer, which may be away for long.
            left = given_up[0][0] - now
            self._call = self._clock.callLater(left if left > 0 else GIVEN_UP_HELD, self._look)
