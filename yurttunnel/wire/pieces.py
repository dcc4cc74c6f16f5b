"""Pieces of data that wait, joined where they are short."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final, TypeAlias, TypeVar

Buffer: TypeAlias = bytes | memoryview
"""A piece, or what is left of one."""

Piece = TypeVar("Piece", bytes, Buffer)

JOIN_BELOW: Final = 1024
"""Pieces that wait are joined up to this size: each by itself would cost many times its bytes."""


def keep_piece(pieces: MutableSequence[Piece], piece: Piece) -> None:
    """Keep ``piece`` behind ``pieces``, joined with the last one where both are short."""
    if pieces and len(pieces[-1]) + len(piece) <= JOIN_BELOW:
        pieces[-1] = b"".join((pieces[-1], piece))
    else:
        pieces.append(piece)
