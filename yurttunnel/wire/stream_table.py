"""The streams of a session, and the stream numbers used so far."""

from __future__ import annotations

import enum
from typing import Final

from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget, ReceiveWindow
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Limits
from yurttunnel.wire.stream import ANSWERING, CLOSED, OPENING, Stream, StreamState


class Side(enum.IntEnum):
    """The two ends of a session; the value is the first number of the streams that it opens."""

    SERVER = 1
    AGENT = 2


class StreamTable:
    """The open streams by number; numbers only increase and are never reused.

    The window of every stream is reserved in ``budget`` until the stream is removed.
    """

    def __init__(self, side: Side, local: Limits, peer: Limits, budget: MemoryBudget) -> None:
        self.open: dict[int, Stream] = {}
        self.openings: dict[int, Stream] = {}
        self.next_number = int(side)
        self.last_peer_number = 0
        self.opened_by_peer = 0
        self._parity: Final = side % 2
        self._local = local
        self._peer = peer
        self._budget = budget

    @property
    def opened_here(self) -> int:
        """The number of open streams that this side has opened."""
        return len(self.open) - self.opened_by_peer

    def begin(self, request: frames.OpenRequest, now: float) -> Stream | None:
        """Create a stream opened by this side; return ``None`` if there is no memory for it."""
        stream = self._add(self.next_number, OPENING, request, now)
        if stream is not None:
            self.next_number += 2
            self.openings[stream.number] = stream
        return stream

    def admit(self, number: int, request: frames.OpenRequest, now: float) -> Stream | None:
        """Create a stream opened by the peer; return ``None`` if there is no memory for it."""
        stream = self._add(number, ANSWERING, request, now)
        if stream is not None:
            self.opened_by_peer += 1
        return stream

    def take_number(self, number: int) -> None:
        """Record that the peer uses ``number``; raises :class:`Violation` if it is not allowed."""
        if number % 2 == self._parity or number <= self.last_peer_number:
            raise Violation(Code.PROTOCOL, f"OPEN with stream number {number}")
        self.last_peer_number = number

    def find(self, number: int) -> Stream | None:
        """Return an open stream, or ``None`` for one that is closed.

        Raises :class:`Violation` for a number that was never used.
        """
        stream = self.open.get(number)
        if stream is None:
            used = self.next_number - 1 if number % 2 == self._parity else self.last_peer_number
            if not 0 < number <= used:
                text = f"a frame for stream {number}, which was never opened"
                raise Violation(Code.PROTOCOL, text)
        return stream

    def remove(self, stream: Stream) -> None:
        """Remove ``stream`` and release its window."""
        stream.state = CLOSED
        del self.open[stream.number]
        self.openings.pop(stream.number, None)
        if not stream.opened_here:
            self.opened_by_peer -= 1
        self._budget.release(stream.window.size)

    def _add(
        self, number: int, state: StreamState, request: frames.OpenRequest, now: float
    ) -> Stream | None:
        size = self._local.stream_window
        if not self._budget.reserve(size):
            return None
        window = ReceiveWindow(size, size // 2, now)
        limits = self._peer
        stream = Stream(number, state, request, window, limits.stream_window, limits.max_frame)
        self.open[number] = stream
        return stream
