"""A dictionary with a maximum size, in which the newest entries replace the oldest."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """At most ``max_entries`` entries, in the order in which they were last set.

    One more evicts the oldest. A cache whose lookups count as use moves the entry to the end.
    """

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: K, value: V) -> None:
        """Make ``key`` the newest entry."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_entries:
            self.popitem(last=False)
