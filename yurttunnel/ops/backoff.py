"""The delays between attempts that fail: exponential backoff with jitter."""

from __future__ import annotations

import random

_MAX_DOUBLINGS = 30
"""A limit of the exponent, which would otherwise overflow after an outage of days."""


def exponential(failures: int, first: float, longest: float) -> float:
    """Return ``first`` doubled ``failures`` times, at most ``longest``; all in seconds."""
    return min(first * 2.0 ** min(failures, _MAX_DOUBLINGS), longest)


def full_jitter(failures: int, first: float, longest: float, shortest: float = 0.0) -> float:
    """Return a random delay between ``shortest`` and what :func:`exponential` returns, in seconds.

    It keeps many clients that lose a server at the same moment from reconnecting at once; see
    "Exponential Backoff And Jitter" of the AWS Architecture Blog.
    """
    return random.uniform(shortest, exponential(failures, first, longest))


def equal_jitter(failures: int, first: float, longest: float) -> float:
    """Return a random delay between half of what :func:`exponential` returns and all of it."""
    most = exponential(failures, first, longest)
    return random.uniform(most / 2, most)


class Backoff:
    """The delays, of ``shortest`` to ``longest`` seconds, after consecutive failures."""

    def __init__(self, shortest: float = 0.5, longest: float = 30.0) -> None:
        self._shortest = shortest
        self._longest = longest
        self._failures = 0

    def next(self) -> float:
        """Count another failure, and return the delay after it."""
        self._failures += 1
        return full_jitter(self._failures, self._shortest, self._longest, self._shortest)

    def reset(self) -> None:
        """Reset the count of failures, so that delays are short again."""
        self._failures = 0
