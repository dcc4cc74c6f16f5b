"""What waits to be sent, in the order in which it goes: control, credit, then data by turns.

What is sent for the first time goes through the log, which gives it again after a lost
connection. How much may be under way unacknowledged follows the measured rate: enough to fill
the path twice over, and little more, because whatever is under way delays all that comes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.scheduler import MAX_QUANTUM, MIN_QUANTUM, FairQueue
from yurttunnel.wire.send_log import SendLog

MAX_KEPT: Final = 16 * 1024 * 1024
"""However fast the path, no more data than this may be unacknowledged, bytes."""

MIN_KEPT: Final = 1024 * 1024
"""However slow the path, this much of data may be unacknowledged, bytes."""

QUEUE_TIME: Final = 0.005
"""How long data may wait in the buffers along the path beside its round trip, seconds."""

MAX_CONTROL: Final = 64 * 1024
"""No stream is opened while this much of control frames waits to be sent, bytes. It also is
what control frames may add to :data:`MAX_KEPT`, so a peer that acknowledges nothing costs no
more than both."""

RATE_INTERVAL: Final = 0.05
"""The sending rate is measured over at least this long, seconds."""

IDLE_INTERVAL: Final = 1.0
"""A rate over more than this has a pause in it, seconds: ACKs come each 0.2 s at the least."""

MAX_CHUNK: Final = 256 * 1024
"""However fast the path, no more is asked for at a time, bytes."""


class Outbox:
    """The sending half of a session.

    What is kept until it is acknowledged counts in ``budget``; when that is used up, one chunk
    at a time is under way. ``payload_limit`` is the credit that the peer has given for all
    streams together, ``payload_sent`` how much of it is used. ``chunk`` is how much to ask for
    at a time: about ten milliseconds of the measured rate.
    """

    def __init__(self, payload_limit: int, now: float, budget: MemoryBudget | None = None) -> None:
        self.log = SendLog(budget)
        self._budget = budget
        self.queue = FairQueue()
        self.payload_limit = payload_limit
        self.payload_sent = 0
        self.chunk = 64 * 1024
        self.control_size = 0
        self._most_kept = MIN_KEPT
        self._control: list[bytes] = []
        # One frame of each type: a newer PING, PONG or ACK says all that an older one did.
        self.link: dict[int, bytes] = {}
        self._rate_since = now
        self._rate_bytes = 0

    def put(self, frame: bytes) -> None:
        """Queue a control frame of the session."""
        self._control.append(frame)
        self.control_size += len(frame)

    def put_link(self, kind: int, frame: bytes) -> None:
        """Queue a frame of the connection, in the place of an earlier one of its type."""
        self.link[kind] = frame

    def take_link(self) -> bytes:
        """Give the frames of the connection, once."""
        if not self.link:
            return b""
        link, self.link = self.link, {}
        return b"".join(link.values())

    def drop_link(self) -> None:
        """Forget the frames of the connection, which end with it."""
        self.link.clear()

    def connected(self, now: float) -> None:
        """Begin with a new connection: what is not acknowledged goes first."""
        self.drop_link()
        self._rate_since = now
        self._rate_bytes = 0
        self.log.rewind()

    @property
    def most_kept(self) -> int:
        """How much data may be unacknowledged now, bytes."""
        return self._most_kept

    @property
    def is_full(self) -> bool:
        """Whether nothing may be sent before the peer acknowledges some of what it has got."""
        return self.log.kept >= MAX_KEPT + MAX_CONTROL

    def next_chunk(self, limit: int, credit: Sequence[bytes] = ()) -> bytes:
        """Give the next new bytes of the session, with the ``credit`` frames in them.

        ``limit`` bounds the payload of streams.
        """
        parts: list[bytes] = []
        if self.control_size:
            parts, self._control = self._control, parts
            self.control_size = 0
        parts += credit
        if self.queue.active and self._may_keep_more():
            room = min(limit, self.payload_limit - self.payload_sent)
            if room > 0:
                self.payload_sent += self.queue.fill(parts, room)
        if not parts:
            return b""
        chunk = b"".join(parts)
        self.log.append(chunk)
        return chunk

    def _may_keep_more(self) -> bool:
        kept = self.log.kept
        if self._budget is not None and self._budget.is_used_up:
            return not kept
        return kept < self._most_kept

    def acknowledged(self, position: int, now: float, round_trip: float | None) -> None:
        """Forget what the peer has, and adapt to the rate at which it gets there.

        Raises :class:`~yurttunnel.wire.frames.Violation` like the log.
        """
        self._rate_bytes += self.log.acknowledge(position)
        elapsed = now - self._rate_since
        if elapsed < RATE_INTERVAL:
            return
        rate = self._rate_bytes / elapsed
        self._rate_since = now
        self._rate_bytes = 0
        if elapsed > IDLE_INTERVAL:
            # Nobody had anything to send, which says nothing of the path.
            return
        self.queue.quantum = _within(MIN_QUANTUM, rate * QUEUE_TIME, MAX_QUANTUM)
        self.chunk = _within(4 * MIN_QUANTUM, rate * 2 * QUEUE_TIME, MAX_CHUNK)
        path = 2 * (round_trip or 0.1)
        self._most_kept = _within(MIN_KEPT, rate * (path + QUEUE_TIME), MAX_KEPT)


def _within(least: int, value: float, most: int) -> int:
    return int(min(max(value, least), most))
