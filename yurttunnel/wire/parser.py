"""A parser of the frames of a connection, from pieces of any size.

The payload of DATA is delivered as it arrives, without waiting for a complete frame; every other
frame is delivered whole. ``received`` counts the bytes of session frames that were processed. After
a lost connection the peer continues exactly there, even in the middle of a DATA frame. The start of
any other incomplete frame is discarded and sent again.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation

# Looked up once, because they are used for each frame.
DATA, LINK = frames.DATA, frames.LINK
HEADER_SIZE, CONTROL_LIMIT = frames.HEADER_SIZE, frames.CONTROL_LIMIT
_unpack_header = frames.HEADER.unpack_from


class FrameParser:
    """Parses frames of at most ``max_frame`` bytes of payload.

    ``on_data(stream, piece)`` is called with each piece of the payload of a DATA frame,
    ``on_control(kind, stream, payload)`` with every other frame. Either may raise
    :class:`Violation`, after which the parser cannot be used.
    """

    def __init__(
        self,
        max_frame: int,
        on_data: Callable[[int, bytes], None],
        on_control: Callable[[int, int, bytes], None],
    ) -> None:
        self.received = 0
        self._max_frame = max_frame
        self._on_data = on_data
        self._on_control = on_control
        self._buffer = b""
        self._stream = 0
        self._left = 0

    def restart(self) -> None:
        """Continue with a new connection, whose session bytes start at ``received``."""
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        """Parse ``data``, the next bytes of the connection."""
        position = 0
        if self._left:
            position = self._continue_data(data)
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        end = len(data)
        while end - position >= HEADER_SIZE:
            length, kind, stream = _unpack_header(data, position)
            position += HEADER_SIZE
            if kind == DATA:
                if not 0 < length <= self._max_frame:
                    raise _unacceptable(length)
                available = end - position
                size = length if length <= available else available
                self._stream = stream
                self._left = length - size
                self.received += HEADER_SIZE + size
                if size:
                    piece = data[position : position + size]
                    position += size
                    self._on_data(stream, piece)
                continue
            if length > CONTROL_LIMIT:
                raise Violation(
                    Code.FRAME_TOO_LARGE, f"a control frame of {length} bytes is too long"
                )
            if end - position < length:
                position -= HEADER_SIZE
                break
            payload = data[position : position + length]
            position += length
            if not kind & LINK:
                self.received += HEADER_SIZE + length
            self._on_control(kind, stream, payload)
        if position < end:
            self._buffer = data[position:]

    def _continue_data(self, data: bytes) -> int:
        piece = data if len(data) <= self._left else data[: self._left]
        size = len(piece)
        self._left -= size
        self.received += size
        if size:
            self._on_data(self._stream, piece)
        return size


def _unacceptable(length: int) -> Violation:
    """Return the violation for an invalid length of DATA."""
    if not length:
        return Violation(Code.PROTOCOL, "a DATA frame is empty")
    return Violation(Code.FRAME_TOO_LARGE, f"a DATA frame of {length} bytes is too long")
