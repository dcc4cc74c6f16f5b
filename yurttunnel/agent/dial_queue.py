"""Queues dials that exceed a target's limit, and shares a full queue among targets."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Dial = TypeVar("_Dial", bound=Hashable)


@dataclass(slots=True)
class _TargetQueue(Generic[_Dial]):
    """The dials to one target: those in progress, and those waiting in order."""

    active: set[_Dial] = field(default_factory=set)
    waiting: dict[_Dial, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.active) + len(self.waiting)


class DialQueue(Generic[_Dial]):
    """The pending dials of each target, of which ``max_concurrent`` are in progress at a time.

    The caller must call :meth:`remove` once for each dial that was passed to :meth:`add`, and then
    start the dials returned by :meth:`next` until it returns none, if others wait.
    """

    def __init__(self, max_concurrent: int) -> None:
        self._max_concurrent = max_concurrent
        self._targets: dict[Hashable, _TargetQueue[_Dial]] = {}

    def add(self, target: Hashable, dial: _Dial) -> bool:
        """Add ``dial``; return whether its turn is now; otherwise it waits."""
        queue = self._targets.setdefault(target, _TargetQueue())
        starts = not queue.waiting and len(queue.active) < self._max_concurrent
        if starts:
            queue.active.add(dial)
        else:
            queue.waiting[dial] = None
        return starts

    def remove(self, target: Hashable, dial: _Dial) -> bool:
        """Remove ``dial``, in progress or waiting; return whether others wait."""
        queue = self._targets[target]
        queue.active.discard(dial)
        queue.waiting.pop(dial, None)
        if not queue:
            del self._targets[target]
        return bool(queue.waiting)

    def next(self, target: Hashable) -> _Dial | None:
        """Return the next dial, which is in progress from now on."""
        queue = self._targets.get(target)
        if queue is None or not queue.waiting or len(queue.active) >= self._max_concurrent:
            return None
        dial = next(iter(queue.waiting))
        del queue.waiting[dial]
        queue.active.add(dial)
        return dial

    def evictable_for(self, target: Hashable) -> _Dial | None:
        """Return the dial that one more to ``target`` may displace if there is no room left.

        It is the newest that waits for the target with the most dials, which must have more than
        ``target`` would have: so no target uses up the room of others.
        """
        most = max(self._targets.values(), key=len, default=None)
        own = len(self._targets.get(target, ()))
        if most is None or not most.waiting or len(most) <= own + 1:
            return None
        return next(reversed(most.waiting))
