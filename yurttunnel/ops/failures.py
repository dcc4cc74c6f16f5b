"""What callers have asked for and not got: the last of it, and how often."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import time_of_day

KEPT = 200
"""How many are kept; their number is counted further."""

_LONGEST = 300
"""Characters of a text that are kept: callers choose parts of some."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One request: ``at`` is in seconds since the epoch, ``status`` that of HTTP if it was that.

    ``kind`` is the kind of entry by which it came, ``who`` the address or the name of the caller,
    and ``text`` what it was told, or what the log says where it could not be told.
    """

    at: float
    kind: str
    who: str
    node: str
    request_id: str
    status: int | None
    text: str


class Failures:
    """A ring of the last ones; ``count`` is the number of all."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._kept: deque[Failure] = deque(maxlen=KEPT)
        self.count = 0

    def note(
        self, kind: str, who: str, node: str, request_id: str, status: int | None, text: str
    ) -> None:
        """Keep one."""
        self.count += 1
        who, node, request_id, text = (each[:_LONGEST] for each in (who, node, request_id, text))
        now = time_of_day(self._clock)
        self._kept.append(Failure(now, kind, who, node, request_id, status, text))

    def newest_first(self) -> Iterator[Failure]:
        """Go through those that are kept."""
        return reversed(tuple(self._kept))
