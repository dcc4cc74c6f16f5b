"""One stream: two byte sequences with flow control, each of which ends independently.

A stream starts as ``OPENING`` on the side that sent OPEN and as ``ANSWERING`` on the other. It is
``OPEN`` after OK, and ``CLOSED`` after FAIL, RESET, both FINs, or the end of its session. Each
direction of an open stream ends on its own (``send_ended``, ``receive_ended``).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Protocol

from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import ReceiveWindow
from yurttunnel.wire.pieces import Buffer, append_piece

HEADER = frames.HEADER
DATA = frames.DATA


class StreamState(enum.Enum):
    """The state of a stream."""

    OPENING = "opening"
    ANSWERING = "answering"
    OPEN = "open"
    CLOSED = "closed"


# Unpacked once: an attribute access to an enum costs as much as a function call.
OPENING, ANSWERING, OPEN, CLOSED = StreamState


class StreamEvents(Protocol):
    """The events of a stream, implemented by its user.

    Data is delivered through :attr:`Stream.deliver` instead. Every method may call back into the
    stream and its session. An exception resets the stream.
    """

    def stream_opened(self) -> None:
        """Handle OK from the peer."""

    def stream_ended(self) -> None:
        """Handle the peer's FIN, after all data before it was delivered."""

    def stream_writable(self) -> None:
        """Handle that the send buffer, which was full, has drained."""

    def stream_closed(self, code: Code, text: str) -> None:
        """Handle the end of the stream, ``DONE`` after both FINs; called once, the last event."""


WRITABLE_BELOW = 32 * 1024
"""A full stream becomes writable again when fewer bytes than this are to be sent."""

FULL_ABOVE = 64 * 1024
"""A stream is full when more bytes than this are to be sent."""


class Stream:
    """The state of one stream, which the session drives.

    ``deliver`` is called with each received piece of data while the stream is not ``paused``; it is
    looked up for each piece, so it may be replaced at any time. ``since`` is when the stream began,
    by the session's clock.
    """

    __slots__ = (
        "backlog",
        "cancelled_at",
        "credit_due",
        "deadline",
        "deficit",
        "deliver",
        "end_waiting",
        "events",
        "full",
        "head_offset",
        "max_frame",
        "number",
        "opened_here",
        "paused",
        "pending",
        "pending_size",
        "queued",
        "receive_ended",
        "request",
        "send_ended",
        "send_limit",
        "sent",
        "since",
        "state",
        "will_end",
        "window",
    )

    def __init__(
        self,
        number: int,
        state: StreamState,
        request: frames.OpenRequest,
        window: ReceiveWindow,
        send_limit: int,
        max_frame: int,
    ) -> None:
        self.number = number
        self.state = state
        self.opened_here = state is OPENING
        self.request = request
        self.events: StreamEvents
        self.deliver: Callable[[bytes], object]
        self.deadline = 0.0
        # The end position, in this side's sequence, of the RESET that cancelled an OPEN; else 0.
        self.cancelled_at = 0
        # The window is as old as the stream.
        self.since = window.since
        # Receiving.
        self.window = window
        self.paused = True
        self.backlog: deque[bytes] = deque()
        self.receive_ended = False
        self.end_waiting = False
        self.credit_due = False
        # Sending.
        self.send_limit = send_limit
        self.sent = 0
        self.max_frame = max_frame
        self.pending: deque[bytes] = deque()
        self.pending_size = 0
        self.head_offset = 0
        self.full = False
        self.will_end = False
        self.send_ended = False
        # Scheduling.
        self.queued = False
        self.deficit = 0

    @property
    def closed(self) -> bool:
        """Whether the stream has ended and was removed from its session."""
        return self.state is CLOSED

    def keep(self, piece: bytes) -> None:
        """Buffer ``piece`` until the stream is resumed."""
        append_piece(self.backlog, piece)

    def push(self, data: bytes) -> None:
        """Queue ``data`` to be sent."""
        append_piece(self.pending, data)
        self.pending_size += len(data)
        if self.pending_size > FULL_ABOVE:
            self.full = True

    def take(self, parts: list[Buffer], allowance: int) -> int:
        """Append up to ``allowance`` bytes to ``parts`` as DATA frames; return how many.

        There must be data and credit; fewer bytes are taken if there is less of either. FIN follows
        the last byte if the stream is to end.
        """
        pending = self.pending
        total = min(allowance, self.pending_size, self.send_limit - self.sent)
        if len(pending[0]) == total <= self.max_frame and not self.head_offset:
            # The common case: one piece is one frame.
            parts.append(HEADER.pack(total, DATA, self.number))
            parts.append(pending.popleft())
        else:
            left = total
            while left > 0:
                size = min(left, self.max_frame)
                parts.append(HEADER.pack(size, DATA, self.number))
                self._take_bytes(parts, size)
                left -= size
        self.sent += total
        self.pending_size -= total
        if self.will_end and not self.pending_size:
            self.send_ended = True
            parts.append(HEADER.pack(0, frames.FIN, self.number))
        return total

    def drop_pending(self) -> None:
        """Drop data that is to be sent or delivered."""
        self.pending.clear()
        self.backlog.clear()
        self.pending_size = self.head_offset = 0
        self.end_waiting = False

    def _take_bytes(self, parts: list[Buffer], size: int) -> None:
        pending = self.pending
        while size > 0:
            head = pending[0]
            start = self.head_offset
            available = len(head) - start
            if available > size:
                # A view: the data is copied once, when the parts are joined.
                parts.append(memoryview(head)[start : start + size])
                self.head_offset = start + size
                return
            parts.append(memoryview(head)[start:] if start else head)
            pending.popleft()
            self.head_offset = 0
            size -= available
