"""Bodies as they are on the wire, read and written without input or output.

Pieces of a body are passed on as they come; nothing waits for a chunk to be complete, and only
the few bytes of a line that has been cut are ever kept.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

from yurttunnel.http.fields import (
    SENT_IN_TRAILERS,
    Fields,
    allowed_in_trailers,
    check_field,
    format_fields,
)
from yurttunnel.http.framing import NO_BODY, BodyKind, Framing

# Found once, in their order, as a look into an enumeration costs as much as a call.
_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE = BodyKind

# RFC 9112 section 7.1, with less freedom: at most 15 digits, which no chunk of any size needs,
# no white space before an extension, and extensions in ASCII. They are ignored.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e]*)?")
_LINE_END = b"\r\n"
_LAST_CHUNK = b"0\r\n"
_FREE_LINE_BYTES = 16
"""Bytes of a size line that do not count as overhead: any size without extensions is free."""


class BodyError(Exception):
    """A body that is not what its framing says; one line says why."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How much around the data of a chunked body is taken in.

    ``max_line_bytes`` bounds a line with the size and the extensions of a chunk, ``max_overhead``
    by how many bytes the lines may be ahead of the data, ``max_trailer_bytes`` and
    ``max_trailers`` the fields behind the body.
    """

    max_line_bytes: int = 256
    max_overhead: int = 16 * 1024
    max_trailer_bytes: int = 8 * 1024
    max_trailers: int = 64


_DEFAULT_LIMITS = BodyLimits()


class BodyReader:
    """Reads one body.

    ``ended`` is true once the body is complete, at once when it has no bytes; ``trailers`` are
    the fields behind it. The reader is of no use after it has raised.
    """

    def __init__(self, framing: Framing, limits: BodyLimits = _DEFAULT_LIMITS) -> None:
        self._kind = framing.kind
        self._remaining = framing.length
        self._chunks = _Chunks(limits) if framing.kind is _CHUNKED else None
        self.ended = not framing.announces_body

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """The fields behind the body; complete when the body has ended."""
        return self._chunks.trailers if self._chunks is not None else []

    def feed(self, data: bytes, deliver: Callable[[bytes], object]) -> bytes:
        """Take the next bytes, and call ``deliver`` with what they have of the body, if anything.

        Returns what follows the body once it has ended, and nothing before. ``deliver`` is
        called at most once, and last, so that it may do anything. Raises :class:`BodyError`.
        """
        if self.ended:
            return data
        if self._chunks is not None:
            piece, rest = self._chunks.feed(data)
            self.ended = self._chunks.ended
        elif self._kind is _LENGTH:
            piece, rest = self._counted(data)
        else:
            piece, rest = data, b""
        if piece:
            deliver(piece)
        return rest

    def end_of_input(self) -> None:
        """Take note that the connection ends here.

        Raises :class:`BodyError` unless that is the end of the body, too.
        """
        if self._kind is _UNTIL_CLOSE:
            self.ended = True
        elif not self.ended:
            raise BodyError("the body broke off before its end")

    def _counted(self, data: bytes) -> tuple[bytes, bytes]:
        remaining = self._remaining
        if len(data) < remaining:
            self._remaining = remaining - len(data)
            return data, b""
        self._remaining = 0
        self.ended = True
        return data[:remaining], data[remaining:]


class BodyWriter:
    """Frames one body. Nothing that it raises for has been written in part."""

    def __init__(self, framing: Framing) -> None:
        self._kind = framing.kind
        self._remaining = framing.length
        self._finished = False

    def encode(self, data: bytes) -> bytes:
        """Frame the next piece. Raises :class:`BodyError` when the body has no room for it."""
        if not data:
            # As a chunk it would be the last.
            return b""
        kind = self._kind
        if self._finished or kind is _NONE:
            raise BodyError("there is more of the body than its head has announced")
        if kind is _CHUNKED:
            return b"%x\r\n%b\r\n" % (len(data), data)
        if kind is _LENGTH:
            if len(data) > self._remaining:
                raise BodyError("there is more of the body than its head has announced")
            self._remaining -= len(data)
        return data

    def finish(self, trailers: Fields = ()) -> bytes:
        """End the body with those of ``trailers`` that are :data:`SENT_IN_TRAILERS`.

        All are left out where the framing has no room for them.

        Raises :class:`BodyError` when something is missing, and ``ValueError`` for trailers that
        cannot be sent safely.
        """
        if self._kind is _LENGTH and self._remaining:
            raise BodyError(f"{self._remaining} bytes of the body are missing")
        if self._finished or self._kind is not _CHUNKED:
            self._finished = True
            return b""
        for name, value in trailers:
            check_field(name, value)
            if not allowed_in_trailers(name):
                raise ValueError(f"{name!r} cannot follow a body")
        sent = [field for field in trailers if field[0].lower() in SENT_IN_TRAILERS]
        lines = format_fields(sent)
        self._finished = True
        return b"%b%b\r\n" % (_LAST_CHUNK, lines)


NO_BODY_READER = BodyReader(NO_BODY)
NO_BODY_WRITER = BodyWriter(NO_BODY)
"""Those of all messages without a body, in which they can do nothing but end."""


class _ChunkState(enum.Enum):
    SIZE = enum.auto()
    """A line with a size is expected."""
    DATA = enum.auto()
    """So many bytes of a chunk are still to come."""
    DATA_END = enum.auto()
    """The line end behind a chunk is expected."""
    TRAILERS = enum.auto()
    """Fields are expected, or the empty line that ends the body."""
    ENDED = enum.auto()


class _Chunks:
    """The chunked coding (RFC 9112 section 7.1)."""

    def __init__(self, limits: BodyLimits) -> None:
        self.trailers: list[tuple[bytes, bytes]] = []
        self._limits = limits
        self._state = _ChunkState.SIZE
        self._remaining = 0
        self._overhead = 0
        self._trailer_bytes = 0
        self._cut = b""
        self._pieces: list[bytes] = []

    @property
    def ended(self) -> bool:
        return self._state is _ChunkState.ENDED

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what ``data`` has of the body, and what follows the body once it has ended."""
        if self._cut:
            data = self._cut + data
            self._cut = b""
        position: int | None = 0
        while position is not None and self._state is not _ChunkState.ENDED:
            position = self._step(data, position)
        pieces, self._pieces = self._pieces, []
        # Joined, so that many small chunks in one read cost whoever takes them only one call.
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return body, b"" if position is None else data[position:]

    def _step(self, data: bytes, start: int) -> int | None:
        """Read one element from ``start`` on; give where it ends, ``None`` if more is needed."""
        state = self._state
        if state is _ChunkState.DATA:
            return self._data(data, start)
        if state is _ChunkState.DATA_END:
            return self._data_end(data, start)
        end = self._line_end(data, start)
        if end is None:
            return None
        if state is _ChunkState.SIZE:
            self._size(data, start, end)
        else:
            self._trailer(data[start:end])
        return end + len(_LINE_END)

    def _line_end(self, data: bytes, start: int) -> int | None:
        trailers = self._state is _ChunkState.TRAILERS
        limit = self._limits.max_trailer_bytes if trailers else self._limits.max_line_bytes
        end = data.find(_LINE_END, start)
        length = (len(data) if end < 0 else end) - start
        if length > limit:
            raise BodyError(f"a line of the chunked body is longer than {limit} bytes")
        if end >= 0:
            return end
        self._cut = data[start:]
        if b"\n" in self._cut or b"\r" in self._cut[:-1]:
            raise BodyError("a line of the chunked body does not end with CR and LF")
        return None

    def _size(self, data: bytes, start: int, end: int) -> None:
        line = _SIZE_LINE.fullmatch(data, start, end)
        if line is None:
            raise BodyError("the size of a chunk is not a plain hexadecimal number")
        size = int(line[1], 16)
        self._remaining = size
        self._state = _ChunkState.DATA if size else _ChunkState.TRAILERS
        # As Go's net/http does since CVE-2023-39326: data makes up for what is around it.
        overhead = self._overhead + end - start - _FREE_LINE_BYTES - 2 * size
        self._overhead = max(0, overhead)
        if overhead > self._limits.max_overhead:
            raise BodyError("the chunked body consists of little but extensions")

    def _data(self, data: bytes, start: int) -> int | None:
        if start == len(data):
            return None
        piece = data[start : start + self._remaining]
        self._pieces.append(piece)
        self._remaining -= len(piece)
        if not self._remaining:
            self._state = _ChunkState.DATA_END
        return start + len(piece)

    def _data_end(self, data: bytes, start: int) -> int | None:
        found = data[start : start + len(_LINE_END)]
        if found == _LINE_END:
            self._state = _ChunkState.SIZE
            return start + len(_LINE_END)
        if not _LINE_END.startswith(found):
            raise BodyError("a chunk is longer than its size says")
        self._cut = found
        return None

    def _trailer(self, line: bytes) -> None:
        if not line:
            self._state = _ChunkState.ENDED
            return
        self._trailer_bytes += len(line) + len(_LINE_END)
        limits = self._limits
        if self._trailer_bytes > limits.max_trailer_bytes:
            raise BodyError(f"the trailers are longer than {limits.max_trailer_bytes} bytes")
        if len(self.trailers) == limits.max_trailers:
            raise BodyError(f"the body has more than {limits.max_trailers} trailers")
        self.trailers.append(_parsed_trailer(line))


def _parsed_trailer(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    try:
        check_field(name, value)
    except ValueError as error:
        raise BodyError(f"a trailer is malformed: {error}") from None
    if not colon:
        raise BodyError("a trailer is malformed: it has no colon")
    if not allowed_in_trailers(name):
        raise BodyError(f"the field {name.decode()} cannot follow a body")
    return name, value
