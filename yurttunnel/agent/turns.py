"""Whose turn it is to dial: those beyond a target's share wait, and a full queue is shared out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Dial = TypeVar("_Dial", bound=Hashable)


@dataclass(slots=True)
class _Line(Generic[_Dial]):
    """The dials to one target: so many are under way, the others wait in their order."""

    under_way: set[_Dial] = field(default_factory=set)
    waiting: dict[_Dial, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.under_way) + len(self.waiting)


class Turns(Generic[_Dial]):
    """The pending dials of each target, of which ``most_at_once`` are under way at a time.

    Whoever asks has to call :meth:`left` once for each dial that was given to :meth:`join`, and
    then to begin what :meth:`next` gives until it gives nothing.
    """

    def __init__(self, most_at_once: int) -> None:
        self._most_at_once = most_at_once
        self._lines: dict[Hashable, _Line[_Dial]] = {}

    def join(self, target: Hashable, dial: _Dial) -> bool:
        """Take ``dial``; return whether it is its turn at once, or it waits."""
        line = self._lines.setdefault(target, _Line())
        its_turn = not line.waiting and len(line.under_way) < self._most_at_once
        if its_turn:
            line.under_way.add(dial)
        else:
            line.waiting[dial] = None
        return its_turn

    def left(self, target: Hashable, dial: _Dial) -> None:
        """Forget ``dial``, whether it was under way or waited."""
        line = self._lines[target]
        line.under_way.discard(dial)
        line.waiting.pop(dial, None)
        if not line:
            del self._lines[target]

    def next(self, target: Hashable) -> _Dial | None:
        """Return the dial whose turn has come, which is under way from now on."""
        line = self._lines.get(target)
        if line is None or not line.waiting or len(line.under_way) >= self._most_at_once:
            return None
        dial = next(iter(line.waiting))
        del line.waiting[dial]
        line.under_way.add(dial)
        return dial

    def displaced_by(self, target: Hashable) -> _Dial | None:
        """Return the dial that one more to ``target`` may displace where there is no room left.

        It is the newest that waits for the target with most dials, which has to have more than
        ``target`` would have: so no target takes the room of others.
        """
        most = max(self._lines.values(), key=len, default=None)
        own = len(self._lines.get(target, ()))
        if most is None or not most.waiting or len(most) <= own + 1:
            return None
        return next(reversed(most.waiting))
