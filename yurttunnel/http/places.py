"""Places of which each caller has as many as it leaves free, so that the next one finds some."""

from __future__ import annotations

from collections.abc import Hashable


class Places:
    """Who has how many of the places that there are, ``most``: one caller alone has half.

    Each has ``least`` in any case, where who gets none waits for one.
    """

    def __init__(self, most: float, least: int = 0) -> None:
        self.most = most
        self._least = least
        self.taken = 0
        self._by_caller: dict[Hashable, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether nobody may have another one."""
        return self.taken >= self.most

    def has_one_for(self, caller: Hashable) -> bool:
        """Return whether ``caller`` has fewer than it leaves free; ``None`` may have all."""
        free = self.most - self.taken
        taken = 0 if caller is None else self._by_caller.get(caller, 0)
        return free > taken or taken < self._least

    def count(self, caller: Hashable, change: int) -> None:
        """Count one more or one less of a caller."""
        self.taken += change
        if caller is None:
            return
        count = self._by_caller.get(caller, 0) + change
        if count:
            self._by_caller[caller] = count
        else:
            self._by_caller.pop(caller, None)
