"""What a fuzz target is, and how random cases for it are made."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

INTERESTING = (0, 1, 2, 9, 10, 13, 32, 44, 58, 59, 127, 128, 255)
"""Bytes at which readers change their minds: ends, separators, signs."""

MOST_PIECES = 12
MOST_DAMAGES = 4


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of strangers.

    ``check`` takes one case and tells whether its bytes were accepted. It raises
    :class:`AssertionError` when a promise is broken; anything else that it raises is a crash. The
    first :data:`PLAN` bytes of a case decide how the rest is cut. ``starts`` are what cases begin
    with, ``pieces`` what follows; most of them make sense.
    """

    name: str
    check: Callable[[bytes], bool]
    starts: Sequence[bytes]
    pieces: Sequence[bytes]


PLAN = 4
"""Bytes at the beginning of a case that say where its other bytes are cut."""


def cut(case: bytes) -> list[bytes]:
    """Cut the bytes of ``case`` behind its plan as the plan says, into up to four pieces."""
    data = case[PLAN:]
    places = sorted(place * (len(data) + 1) // 256 for place in case[1:PLAN])
    return [data[begin:end] for begin, end in pairwise([0, *places, len(data)])]


def cases(target: Target, seed: int) -> Iterator[bytes]:
    """Make cases without end: rows of pieces that make sense, half of them damaged a bit."""
    chance = random.Random(f"{target.name} {seed}")
    while True:
        parts = [chance.choice(target.starts)]
        parts += chance.choices(target.pieces, k=chance.randrange(MOST_PIECES))
        data = bytearray(b"".join(parts))
        for _ in range(chance.choice((0, chance.randint(1, MOST_DAMAGES)))):
            _damage(data, chance)
        yield chance.randbytes(PLAN) + bytes(data)


def _damage(data: bytearray, chance: random.Random) -> None:
    """Change one place of ``data``."""
    place = chance.randrange(len(data) + 1)
    size = chance.choice((1, 1, 1, 2, 4, 8, 30))
    kind = chance.randrange(5)
    if kind == 0:
        data[place : place + 1] = bytes([chance.choice(INTERESTING)])
    elif kind == 1:
        data[place:place] = chance.randbytes(size)
    elif kind == 2:
        del data[place : place + size]
    elif kind == 3:
        data[place:place] = data[place : place + size]
    elif place < len(data):
        data[place] ^= 1 << chance.randrange(8)
