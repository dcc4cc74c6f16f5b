"""Credit: how much a peer may send, and the memory that stands behind the promise.

Credit is an absolute number of payload bytes since the start of the stream (or session), so
that a CREDIT frame may be repeated or overtaken without harm. A receiver gives new credit when
bytes have been *consumed*, that is handed to a user who was ready for them; a stream whose user
is paused stops earning credit, and nothing else notices.

Every stream's window is reserved from a :class:`MemoryBudget` before it is promised. The sum of
all windows therefore never exceeds the budget, whatever the peers do. The session's window is
larger than its budget by a third and renewed each eighth, so that streams which nobody reads
can never use up the credit of the others: at least 7/8 of it is there for at most 3/4.
"""

from __future__ import annotations

from typing import Final

MAX_STREAM_WINDOW: Final = 16 * 1024 * 1024
"""No stream's window grows beyond this: 16 MiB carry 2 Gbit/s over 60 ms."""

SHRINK_AFTER: Final = 5.0
"""Seconds that half a window must have lasted before it is halved again."""

LEAST_ROUND_TRIP: Final = 0.005
"""Seconds that credit may take to make a difference on the shortest path: two busy processes
need some for a turn each, while PING sees them idle."""


class MemoryBudget:
    """Bytes that may be promised to peers; budgets may share a larger one (``parent``).

    What is kept for peers to acknowledge is charged to the same budget: it is there already, so
    it is not asked for, and who is about to keep more looks at ``is_used_up`` before.
    """

    def __init__(self, limit: int, parent: MemoryBudget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._parent = parent

    def reserve(self, amount: int) -> bool:
        """Take ``amount`` bytes if they are there."""
        return self._reserve(amount, 1)

    def reserve_growth(self, amount: int) -> bool:
        """Take ``amount`` bytes unless that leaves less than half for new streams."""
        return self._reserve(amount, 2)

    def charge(self, amount: int) -> None:
        """Take ``amount`` bytes that are in memory already."""
        self.used += amount
        if self._parent is not None:
            self._parent.charge(amount)

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left, here or in the larger budget."""
        parent = self._parent
        return self.used >= self.limit or (parent is not None and parent.is_used_up)

    def release(self, amount: int) -> None:
        """Give ``amount`` bytes back."""
        self.used -= amount
        if self._parent is not None:
            self._parent.release(amount)

    def _reserve(self, amount: int, divisor: int) -> bool:
        if self.used + amount > self.limit // divisor:
            return False
        if self._parent is not None and not self._parent._reserve(amount, divisor):
            return False
        self.used += amount
        return True


class ReceiveWindow:
    """The credit that this end gives to its peer, for one stream or a whole session.

    ``received`` and ``consumed`` count payload bytes, ``limit`` is the credit given so far.
    A new limit is due once ``limit - consumed`` has fallen to ``threshold``.
    """

    __slots__ = ("consumed", "last_grant", "limit", "received", "size", "threshold")

    def __init__(self, size: int, threshold: int, now: float) -> None:
        self.size = size
        self.limit = size
        self.threshold = threshold
        self.received = 0
        self.consumed = 0
        self.last_grant = now

    def grant(self, now: float) -> int:
        """Raise the limit to a full window beyond what has been consumed, and give it."""
        self.limit = self.consumed + self.size
        self.last_grant = now
        return self.limit


def tune(
    window: ReceiveWindow,
    now: float,
    round_trip: float | None,
    initial: int,
    most: int,
    budget: MemoryBudget,
) -> None:
    """Fit a stream's window to what its user and the path can do; called before each grant.

    Half a window consumed in less than two round trips means that the window, not the user,
    limits the rate: it doubles, if the budget allows. Half a window that took longer than that
    and than :data:`SHRINK_AFTER` means that less would do as well: it halves. The rule is that
    of go-yamux and rust-yamux with shrinking added. Windows stay between ``initial`` and
    ``most`` bytes; ``most`` is a stream's even share, so that the first to grow leaves the
    others their part.
    """
    elapsed = now - window.last_grant
    size = window.size
    hurried = round_trip is not None and elapsed < 2 * max(round_trip, LEAST_ROUND_TRIP)
    if hurried and 2 * size <= most and budget.reserve_growth(size):
        window.size = 2 * size
    elif size > initial and (size > most or (elapsed > SHRINK_AFTER and not hurried)):
        # At a grant at most half of the window is still promised: halving takes nothing back.
        window.size = size // 2
        budget.release(size - window.size)
    else:
        return
    window.threshold = window.size // 2
