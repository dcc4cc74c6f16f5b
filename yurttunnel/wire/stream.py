"""One stream: a pair of byte sequences with credit, each of which ends by itself.

A stream begins in ``OPENING`` at the side that sent OPEN and in ``ANSWERING`` at the other, is
``OPEN`` after OK, and ``CLOSED`` after FAIL, RESET, both FINs, or with its session. Each
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
from yurttunnel.wire.pieces import Buffer, keep_piece

HEADER = frames.HEADER
DATA = frames.DATA


class StreamState(enum.Enum):
    """Where a stream is in its life."""

    OPENING = "opening"
    ANSWERING = "answering"
    OPEN = "open"
    CLOSED = "closed"


class StreamEvents(Protocol):
    """What happens to a stream, told to its user.

    Data does not come this way but through :attr:`Stream.deliver`. Every method may call back
    into the stream and its session. One that raises has its stream reset.
    """

    def stream_opened(self) -> None:
        """The peer answered OK."""

    def stream_ended(self) -> None:
        """The peer's FIN came, and all data before it has been delivered."""

    def stream_writable(self) -> None:
        """What waited in the stream, which was full, is nearly all sent; more is welcome."""

    def stream_closed(self, code: Code, text: str) -> None:
        """Nothing will happen any more; called once. ``DONE`` after both FINs."""


WRITABLE_BELOW = 32 * 1024
"""A stream that was full asks for more once fewer bytes than this wait to be sent."""

FULL_ABOVE = 64 * 1024
"""A stream with more bytes than this waiting to be sent wants no more for now."""


class Stream:
    """The state of one stream; the session drives it.

    ``deliver`` is called with each piece of data that comes in while the stream is not
    ``paused``; it is looked up once a piece, so it may be replaced at any time. ``since`` is when
    the stream began, by the session's clock.
    """

    __slots__ = (
        "backlog",
        "credit_due",
        "deadline",
        "deficit",
        "deliver",
        "end_waiting",
        "events",
        "full",
        "given_up_at",
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
        self.opened_here = state is StreamState.OPENING
        self.request = request
        self.events: StreamEvents
        self.deliver: Callable[[bytes], object]
        self.deadline = 0.0
        # Where the RESET ends, in the sequence of this side, with which it gave up an OPEN; else 0.
        self.given_up_at = 0
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
        """Whether the stream has left its session."""
        return self.state is StreamState.CLOSED

    def keep(self, piece: bytes) -> None:
        """Keep ``piece`` until the user is ready for it."""
        keep_piece(self.backlog, piece)

    def push(self, data: bytes) -> None:
        """Queue ``data`` to be sent."""
        keep_piece(self.pending, data)
        self.pending_size += len(data)
        if self.pending_size > FULL_ABOVE:
            self.full = True

    def take(self, parts: list[Buffer], allowance: int) -> int:
        """Move up to ``allowance`` bytes into ``parts``, as DATA frames; give how many.

        There must be data and credit. Less is taken when there is less of either; FIN follows
        the last byte when the stream is to end.
        """
        pending = self.pending
        total = min(allowance, self.pending_size, self.send_limit - self.sent)
        if len(pending[0]) == total <= self.max_frame and not self.head_offset:
            # One piece makes one frame, as most do.
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
        """Forget what waits to be sent and to be delivered."""
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
                # Copied once, when the parts are joined.
                parts.append(memoryview(head)[start : start + size])
                self.head_offset = start + size
                return
            parts.append(memoryview(head)[start:] if start else head)
            pending.popleft()
            self.head_offset = 0
            size -= available
