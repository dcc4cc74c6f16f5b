"""A limit that callers share: each may hold as many places as remain free for the others."""

from __future__ import annotations

from collections.abc import Hashable


class Places:
    """A counter of the places in use, of ``most`` in total, and of those of each caller.

    A caller may hold at most as many places as are free, so a single caller gets half of them.
    Each may hold ``least`` in any case, even if none is free.
    """

    def __init__(self, most: float, least: int = 0) -> None:
        self.most = most
        self._least = least
        self.taken = 0
        self._by_caller: dict[Hashable, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether all places are taken."""
        return self.taken >= self.most

    def has_one_for(self, caller: Hashable) -> bool:
        """Return whether ``caller`` may take another place; ``None`` may take all."""
        free = self.most - self.taken
        taken = 0 if caller is None else self._by_caller.get(caller, 0)
        return free > taken or taken < self._least

    def count(self, caller: Hashable, change: int) -> None:
        """Change the number of places of a caller by ``change``."""
        self.taken += change
        if caller is None:
            return
        count = self._by_caller.get(caller, 0) + change
        if count:
            self._by_caller[caller] = count
        else:
            self._by_caller.pop(caller, None)
