"""Flow control: the credit of a peer, and the memory budget behind it.

Credit is an absolute number of payload bytes since the start of the stream (or session), so a
CREDIT frame may be repeated or overtaken without harm. A receiver grants new credit when bytes have
been *consumed*, that is, delivered to a user that was not paused. A stream with a paused user gets
no more credit, and no other stream is affected.

The window of each stream is reserved from a :class:`MemoryBudget` before it is granted. Therefore
the sum of all windows never exceeds the budget, whatever the peers do. The session's window is
larger than its budget by a third and renewed after each eighth, so that streams that nobody reads
cannot use up the credit of the others: at least 7/8 of the window is available for at most 3/4.
"""

from __future__ import annotations

from typing import Final

MAX_STREAM_WINDOW: Final = 16 * 1024 * 1024
"""The maximum window of a stream in bytes: 16 MiB carry 2 Gbit/s at a round trip of 60 ms."""

GROWTH: Final = 2
LONG_GROWTH: Final = 16
"""The factors by which a window grows if it limits the rate; the second one applies if a round trip
is longer than :data:`MIN_ROUND_TRIP`. Each step takes a round trip, and two large steps get from
64 KiB to :data:`MAX_STREAM_WINDOW`. On a short path small steps are fast too, and promise less to
streams whose users soon stop reading. Such a stream keeps its window, so a large step is taken only
while less than half of the memory for growth is used."""

SHRINK_AFTER: Final = 5.0
"""The time in seconds that half a window must have lasted before the window is halved."""

MIN_ROUND_TRIP: Final = 0.005
"""The time in seconds that credit may take to have an effect on the shortest path: two busy
processes each need some time for an iteration, while PING finds them idle."""


RESERVE: Final = 8
"""One in this many bytes of memory is reserved for the windows of streams. A peer that acknowledges
nothing uses hardly any of it (:attr:`~yurttunnel.wire.send_queue.SendQueue.is_full`)."""


class MemoryBudget:
    """The bytes that may be promised to peers; budgets may share a larger one (``parent``).

    Unacknowledged data is charged to the same budget. It is in memory already, so it is not
    reserved; the sender checks ``is_short`` before it sends more.
    """

    def __init__(self, limit: int, parent: MemoryBudget | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._parent = parent
        # The number of streams whose window has grown, which compete for the memory for growth.
        self._grown = 0

    def reserve(self, amount: int) -> bool:
        """Reserve ``amount`` bytes; return whether they are available."""
        if self.used + amount > self.limit:
            return False
        if self._parent is not None and not self._parent.reserve(amount):
            return False
        self.used += amount
        return True

    def reserve_growth(self, amount: int) -> int:
        """Reserve up to ``amount`` bytes, leaving half for new streams; return the number."""
        amount = max(0, min(amount, self.limit // 2 - self.used))
        if self._parent is not None:
            amount = self._parent.reserve_growth(amount)
        self.used += amount
        return amount

    def count_grown(self, change: int) -> None:
        """Change the number of streams whose window has grown by ``change``."""
        self._grown += change
        if self._parent is not None:
            self._parent.count_grown(change)

    @property
    def is_ample(self) -> bool:
        """Whether less than half of the memory for growth is used, here and in the parent."""
        parent = self._parent
        return self.used < self.limit // 4 and (parent is None or parent.is_ample)

    @property
    def share(self) -> int:
        """The equal share, in bytes, of each stream whose window has grown.

        Streams whose window has never grown, which may be many, do not count.
        """
        share = self.limit // 2 // max(1, self._grown)
        return share if self._parent is None else min(share, self._parent.share)

    def charge(self, amount: int) -> None:
        """Charge ``amount`` bytes that are in memory already."""
        self.used += amount
        if self._parent is not None:
            self._parent.charge(amount)

    @property
    def is_short(self) -> bool:
        """Whether only the reserve for streams is left, here or in the parent."""
        parent = self._parent
        short = self.used >= self.limit - self.limit // RESERVE
        return short or (parent is not None and parent.is_short)

    def release(self, amount: int) -> None:
        """Release ``amount`` bytes."""
        self.used -= amount
        if self._parent is not None:
            self._parent.release(amount)


class ReceiveWindow:
    """The credit that this end grants its peer, for one stream or a whole session.

    ``received`` and ``consumed`` count payload bytes; ``limit`` is the credit granted so far. A new
    limit is due once ``limit - consumed`` has fallen to ``threshold``. ``since`` is when the use of
    the current limit began: when it was granted, or, if no unconsumed data was held then, when the
    next byte arrived. ``consumed_at_grant`` is the number of bytes consumed when it was granted.
    """

    __slots__ = ("consumed", "consumed_at_grant", "limit", "received", "since", "size", "threshold")

    def __init__(self, size: int, threshold: int, now: float) -> None:
        self.size = size
        self.limit = size
        self.threshold = threshold
        self.received = 0
        self.consumed = 0
        self.since = now
        self.consumed_at_grant = 0

    def grant(self, now: float) -> int:
        """Raise the limit to a full window beyond the consumed bytes, and return it."""
        self.consumed_at_grant = self.consumed
        self.limit = self.consumed + self.size
        self.since = now
        return self.limit


def tune(
    window: ReceiveWindow,
    now: float,
    round_trip: float | None,
    initial: int,
    maximum: int,
    budget: MemoryBudget,
) -> None:
    """Adapt a stream's window to the rate of its user and the path; called before each grant.

    If half a window is consumed in less than two round trips, the window and not the user limits
    the rate: it grows (:data:`GROWTH`) as far as the budget allows. If that takes longer, and
    longer than :data:`SHRINK_AFTER`, a smaller window suffices: it is halved. This is the rule of
    go-yamux and rust-yamux, with shrinking and larger steps added. Windows stay between ``initial``
    and ``maximum`` bytes; ``maximum`` is a stream's equal share, so that the first to grow leaves
    room for the others.
    """
    elapsed = now - window.since
    size = window.size
    hurried = round_trip is not None and elapsed < 2 * max(round_trip, MIN_ROUND_TRIP)
    is_long = round_trip is not None and round_trip > MIN_ROUND_TRIP
    # At a grant at most half of the window is still unused, so halving revokes no credit.
    if size > maximum:
        window.size = max(size // 2, maximum)
    elif hurried:
        larger = size * (LONG_GROWTH if is_long and budget.is_ample else GROWTH)
        window.size += budget.reserve_growth(min(larger, maximum) - size)
    elif elapsed > SHRINK_AFTER:
        window.size = max(size // 2, initial)
    if window.size < size:
        budget.release(size - window.size)
    window.threshold = window.size // 2
