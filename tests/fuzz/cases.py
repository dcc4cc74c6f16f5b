"""The definition of a fuzz target, and the generator of random cases for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

INTERESTING = (0, 1, 2, 9, 10, 13, 32, 44, 58, 59, 127, 128, 255)
"""Bytes at which parsers change their state: line ends, separators, signs."""

MAX_PIECES = 12
MAX_CHANGES = 4


@dataclass(frozen=True)
class Target:
    """A parser of untrusted bytes.

    ``check`` takes one case and returns whether its bytes were accepted. It raises
    :class:`AssertionError` when the parser breaks a rule; any other exception is a crash. The
    first :data:`PLAN` bytes of a case determine how the rest is split. A case begins with one
    of ``starts``, and continues with some ``pieces``; most of them are valid.
    """

    name: str
    check: Callable[[bytes], bool]
    starts: Sequence[bytes]
    pieces: Sequence[bytes]


PLAN = 4
"""The number of bytes at the beginning of a case that determine where the others are split."""


def cut(case: bytes) -> list[bytes]:
    """Split the bytes of ``case`` after its plan into four pieces, as the plan specifies."""
    data = case[PLAN:]
    positions = sorted(position * (len(data) + 1) // 256 for position in case[1:PLAN])
    return [data[begin:end] for begin, end in pairwise([0, *positions, len(data)])]


def cases(target: Target, seed: int) -> Iterator[bytes]:
    """Yield cases without end: sequences of valid pieces, half of them slightly damaged."""
    rng = random.Random(f"{target.name} {seed}")
    while True:
        parts = [rng.choice(target.starts)]
        parts += rng.choices(target.pieces, k=rng.randrange(MAX_PIECES))
        data = bytearray(b"".join(parts))
        for _ in range(rng.choice((0, rng.randint(1, MAX_CHANGES)))):
            _change(data, rng)
        yield rng.randbytes(PLAN) + bytes(data)


def _change(data: bytearray, rng: random.Random) -> None:
    """Change ``data`` at one position."""
    position = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 1, 2, 4, 8, 30))
    kind = rng.randrange(5)
    if kind == 0:
        data[position : position + 1] = bytes([rng.choice(INTERESTING)])
    elif kind == 1:
        data[position:position] = rng.randbytes(size)
    elif kind == 2:
        del data[position : position + size]
    elif kind == 3:
        data[position:position] = data[position : position + size]
    elif position < len(data):
        data[position] ^= 1 << rng.randrange(8)
