"""Pauses between attempts that fail."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that are drawn from a range that doubles up to ``longest`` ("full jitter").

    Many clients that lose one server at the same moment then do not come back together; see
    "Exponential Backoff And Jitter" of the AWS Architecture Blog. Seconds all.
    """

    def __init__(self, shortest: float = 0.5, longest: float = 30.0) -> None:
        self._shortest = shortest
        self._longest = longest
        self._ceiling = 0.0
        self.reset()

    def next(self) -> float:
        """Give the pause after one failure more."""
        pause = random.uniform(self._shortest, self._ceiling)
        self._ceiling = min(2 * self._ceiling, self._longest)
        return pause

    def reset(self) -> None:
        """Begin again with short pauses."""
        self._ceiling = min(2 * self._shortest, self._longest)
