"""The record of failed requests: the most recent ones, and the number of all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import time_of_day

MAX_KEPT = 200
"""The maximum number of failures to keep."""

_MAX_TEXT = 300
"""The maximum length of a text in characters: callers choose parts of some."""


class Failure(NamedTuple):
    """A failed request: ``at`` is in seconds since the epoch, ``status`` the HTTP status, if any.

    ``kind`` is the kind of entry point, ``who`` the address or the name of the caller, and ``text``
    the message that the caller got, or that was logged if the caller could not get one.
    """

    at: float
    kind: str
    who: str
    node: str
    request_id: str
    status: int | None
    text: str


class Failures:
    """A ring of the most recent failures; ``count`` is the number of all."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._kept: deque[Failure] = deque(maxlen=MAX_KEPT)
        self.count = 0

    def note(
        self, kind: str, who: str, node: str, request_id: str, status: int | None, text: str
    ) -> None:
        """Record a failure."""
        self.count += 1
        who, node, request_id, text = (each[:_MAX_TEXT] for each in (who, node, request_id, text))
        now = time_of_day(self._clock)
        self._kept.append(Failure(now, kind, who, node, request_id, status, text))

    def newest_first(self) -> Iterator[Failure]:
        """Iterate over the recorded failures, newest first."""
        return reversed(tuple(self._kept))
