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

GROWTH: Final = 2
LONG_GROWTH: Final = 16
"""How many times larger a window becomes that limits the rate, the latter where a round trip is
longer than :data:`LEAST_ROUND_TRIP`: each step takes one, and two of these get from 64 KiB to all
of :data:`MAX_STREAM_WINDOW`. Where it is short, so are many steps, and less is promised to streams
whose users soon stop to read. Such a stream keeps what it was promised, so the large step is taken
only while less than half of what windows may grow into is used."""

SHRINK_AFTER: Final = 5.0
"""Seconds that half a window must have lasted before it is halved again."""

LEAST_ROUND_TRIP: Final = 0.005
"""Seconds that credit may take to make a difference on the shortest path: two busy processes
need some for a turn each, while PING sees them idle."""


RESERVE: Final = 8
"""One of so many bytes of memory is only for the windows of streams: of it each peer that
acknowledges nothing has next to nothing (:attr:`~yurttunnel.wire.send_queue.SendQueue.is_full`)."""


class MemoryBudget:
    """Bytes that may be promised to peers; budgets may share a larger one (``parent``).

    What is kept for peers to acknowledge is charged to the same budget: it is there already, so
    it is not asked for, and who is about to keep more looks at ``is_short`` before.
    """

    def __init__(self, limit: int, parent: MemoryBudget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._parent = parent
        # Streams whose window has grown: those that compete for the half that windows grow into.
        self._grown = 0

    def reserve(self, amount: int) -> bool:
        """Take ``amount`` bytes if they are there."""
        if self.used + amount > self.limit:
            return False
        if self._parent is not None and not self._parent.reserve(amount):
            return False
        self.used += amount
        return True

    def reserve_growth(self, amount: int) -> int:
        """Take as much of ``amount`` as leaves half for new streams; give how many bytes."""
        amount = max(0, min(amount, self.limit // 2 - self.used))
        if self._parent is not None:
            amount = self._parent.reserve_growth(amount)
        self.used += amount
        return amount

    def count_grown(self, change: int) -> None:
        """Count one more, or one less, stream whose window has grown."""
        self._grown += change
        if self._parent is not None:
            self._parent.count_grown(change)

    @property
    def is_ample(self) -> bool:
        """Whether less than half of what windows may grow into is used, here and there."""
        parent = self._parent
        return self.used < self.limit // 4 and (parent is None or parent.is_ample)

    @property
    def share(self) -> int:
        """The even share of a stream whose window has grown, bytes.

        Streams that have never grown, of which there may be many, leave their part to the others.
        """
        share = self.limit // 2 // max(1, self._grown)
        return share if self._parent is None else min(share, self._parent.share)

    def charge(self, amount: int) -> None:
        """Take ``amount`` bytes that are in memory already."""
        self.used += amount
        if self._parent is not None:
            self._parent.charge(amount)

    @property
    def is_short(self) -> bool:
        """Whether no more is left than the part for streams, here or in the larger budget."""
        parent = self._parent
        short = self.used >= self.limit - self.limit // RESERVE
        return short or (parent is not None and parent.is_short)

    def release(self, amount: int) -> None:
        """Give ``amount`` bytes back."""
        self.used -= amount
        if self._parent is not None:
            self._parent.release(amount)


class ReceiveWindow:
    """The credit that this end gives to its peer, for one stream or a whole session.

    ``received`` and ``consumed`` count payload bytes, ``limit`` is the credit given so far.
    A new limit is due once ``limit - consumed`` has fallen to ``threshold``. ``since`` is when
    the use of the present limit began: when it was given, or, where nothing was held then, when
    the first byte came after it. That is the one behind the ``untouched`` ones.
    """

    __slots__ = ("consumed", "limit", "received", "since", "size", "threshold", "untouched")

    def __init__(self, size: int, threshold: int, now: float) -> None:
        self.size = size
        self.limit = size
        self.threshold = threshold
        self.received = 0
        self.consumed = 0
        self.since = now
        self.untouched = 0

    def grant(self, now: float) -> int:
        """Raise the limit to a full window beyond what has been consumed, and return it."""
        self.untouched = self.consumed
        self.limit = self.consumed + self.size
        self.since = now
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
    limits the rate: it grows (:data:`GROWTH`) as far as the budget allows. Half a window
    that took longer than that and than :data:`SHRINK_AFTER` means that less would do as well: it
    halves. The rule is that of go-yamux and rust-yamux with shrinking added, and larger steps.
    Windows stay between ``initial`` and ``most`` bytes; ``most`` is a stream's even share, so
    that the first to grow leaves the others their part.
    """
    elapsed = now - window.since
    size = window.size
    hurried = round_trip is not None and elapsed < 2 * max(round_trip, LEAST_ROUND_TRIP)
    is_long = round_trip is not None and round_trip > LEAST_ROUND_TRIP
    # At a grant at most half of the window is still promised: halving takes nothing back.
    if size > most:
        window.size = max(size // 2, most)
    elif hurried:
        larger = size * (LONG_GROWTH if is_long and budget.is_ample else GROWTH)
        window.size += budget.reserve_growth(min(larger, most) - size)
    elif elapsed > SHRINK_AFTER:
        window.size = max(size // 2, initial)
    if window.size < size:
        budget.release(size - window.size)
    window.threshold = window.size // 2
