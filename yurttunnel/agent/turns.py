"""Queues dials that exceed a target's limit, and shares a full queue among targets."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Dial = TypeVar("_Dial", bound=Hashable)


@dataclass(slots=True)
class _Line(Generic[_Dial]):
    """The dials to one target: those in progress, and those waiting in order."""

    under_way: set[_Dial] = field(default_factory=set)
    waiting: dict[_Dial, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.under_way) + len(self.waiting)


class Turns(Generic[_Dial]):
    """The pending dials of each target, of which ``most_at_once`` are in progress at a time.

    The caller must call :meth:`left` once for each dial that was passed to :meth:`join`, and then
    start the dials returned by :meth:`next` until it returns none.
    """

    def __init__(self, most_at_once: int) -> None:
        self._most_at_once = most_at_once
        self._lines: dict[Hashable, _Line[_Dial]] = {}

    def join(self, target: Hashable, dial: _Dial) -> bool:
        """Add ``dial``; return whether its turn is now; otherwise it waits."""
        line = self._lines.setdefault(target, _Line())
        its_turn = not line.waiting and len(line.under_way) < self._most_at_once
        if its_turn:
            line.under_way.add(dial)
        else:
            line.waiting[dial] = None
        return its_turn

    def left(self, target: Hashable, dial: _Dial) -> None:
        """Remove ``dial``, in progress or waiting."""
        line = self._lines[target]
        line.under_way.discard(dial)
        line.waiting.pop(dial, None)
        if not line:
            del self._lines[target]

    def next(self, target: Hashable) -> _Dial | None:
        """Return the next dial, which is in progress from now on."""
        line = self._lines.get(target)
        if line is None or not line.waiting or len(line.under_way) >= self._most_at_once:
            return None
        dial = next(iter(line.waiting))
        del line.waiting[dial]
        line.under_way.add(dial)
        return dial

    def displaced_by(self, target: Hashable) -> _Dial | None:
        """Return the dial that one more to ``target`` may displace if there is no room left.

        It is the newest that waits for the target with the most dials, which must have more than
        ``target`` would have: so no target uses up the room of others.
        """
        most = max(self._lines.values(), key=len, default=None)
        own = len(self._lines.get(target, ()))
        if most is None or not most.waiting or len(most) <= own + 1:
            return None
        return next(reversed(most.waiting))
