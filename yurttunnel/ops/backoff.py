"""Pauses between attempts that fail."""

from __future__ import annotations

import random

_MOST_DOUBLINGS = 30
"""An exponent without a bound overflows after an outage of days."""


def doubled(failures: int, first: float, longest: float) -> float:
    """Return ``first``, doubled ``failures`` times, ``longest`` at most. Seconds all."""
    return min(first * 2.0 ** min(failures, _MOST_DOUBLINGS), longest)


def full_jitter(failures: int, first: float, longest: float, shortest: float = 0.0) -> float:
    """Return a pause of ``shortest`` to what :func:`doubled` returns. Seconds all.

    Many clients that lose one server at the same moment then do not come back together; see
    "Exponential Backoff And Jitter" of the AWS Architecture Blog.
    """
    return random.uniform(shortest, doubled(failures, first, longest))


def equal_jitter(failures: int, first: float, longest: float) -> float:
    """Return a pause of at least half of what :func:`doubled` returns, at most all of it."""
    most = doubled(failures, first, longest)
    return random.uniform(most / 2, most)


class Backoff:
    """The pauses of one who counts failures in a row: of ``shortest`` to ``longest`` seconds."""

    def __init__(self, shortest: float = 0.5, longest: float = 30.0) -> None:
        self._shortest = shortest
        self._longest = longest
        self._failures = 0

    def next(self) -> float:
        """Return the pause after one failure more."""
        self._failures += 1
        return full_jitter(self._failures, self._shortest, self._longest, self._shortest)

    def reset(self) -> None:
        """Begin again with short pauses."""
        self._failures = 0
