"""Lists of buffered pieces of data, in which short pieces are joined."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final, TypeAlias, TypeVar

Buffer: TypeAlias = bytes | memoryview
"""A piece, or the rest of one."""

Piece = TypeVar("Piece", bytes, Buffer)

JOIN_BELOW: Final = 1024
"""Buffered pieces are joined up to this size, because the overhead of a short piece exceeds it."""


def append_piece(pieces: MutableSequence[Piece], piece: Piece) -> None:
    """Append ``piece`` to ``pieces``, joined with the last one if both are short."""
    if pieces and len(pieces[-1]) + len(piece) <= JOIN_BELOW:
        pieces[-1] = b"".join((pieces[-1], piece))
    else:
        pieces.append(piece)
