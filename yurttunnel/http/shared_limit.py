"""A limit that callers share: each may use as much of it as remains free for the others."""

from __future__ import annotations

from collections.abc import Hashable


class SharedLimit:
    """A counter of what is in use, up to ``maximum`` in total, by caller.

    A caller may use at most as much as is free, so a single caller gets half of the limit. Each may
    use ``minimum`` in any case, even if nothing is free.
    """

    def __init__(self, maximum: float, minimum: int = 0) -> None:
        self.maximum = maximum
        self._minimum = minimum
        self.used = 0
        self._by_caller: dict[Hashable, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether the whole limit is used."""
        return self.used >= self.maximum

    def has_room_for(self, caller: Hashable) -> bool:
        """Return whether ``caller`` may use more; ``None`` may use the whole limit."""
        free = self.maximum - self.used
        used = 0 if caller is None else self._by_caller.get(caller, 0)
        return free > used or used < self._minimum

    def take(self, caller: Hashable) -> bool:
        """Let ``caller`` use one more if there is room, and return whether there is."""
        used = 0 if caller is None else self._by_caller.get(caller, 0)
        if used >= self.maximum - self.used and used >= self._minimum:
            return False
        self.used += 1
        if caller is not None:
            self._by_caller[caller] = used + 1
        return True

    def add(self, caller: Hashable, change: int) -> None:
        """Change what a caller uses by ``change``, which may be negative."""
        self.used += change
        if caller is None:
            return
        used = self._by_caller.get(caller, 0) + change
        if used:
            self._by_caller[caller] = used
        else:
            self._by_caller.pop(caller, None)
