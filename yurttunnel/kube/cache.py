"""A cache of objects that notifies handlers of changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

Key = tuple[str, str]
"""Namespace, empty for objects that are in none, and name."""

ChangeHandler = Callable[[Any | None, Any | None], object]
"""Called with the previous and the new value; ``None`` if there is none."""


@dataclass(frozen=True, eq=False, slots=True)
class _Handler:
    """A registered handler; compared by identity, since one function may be added twice."""

    changed: ChangeHandler


class Cache:
    """Values by key, with handlers that are notified of each change in order.

    A change made while a handler runs is applied after all handlers have been notified of the
    current one, so that no reader sees a state newer than the one that the handlers are notified
    of.
    """

    _log = Logger()

    def __init__(self, what: str) -> None:
        self._what = what
        self._values: dict[Key, Any] = {}
        self._handlers: list[_Handler] = []
        self._pending: deque[tuple[Key, Any | None]] = deque()
        self._notifying = False

    def get(self, key: Key) -> Any | None:
        """Return a value, ``None`` if there is none."""
        return self._values.get(key)

    def values(self) -> Collection[Any]:
        """Return a live view of all values."""
        return self._values.values()

    def keys_except(self, known: Collection[Key]) -> list[Key]:
        """Return the keys that are not in ``known``."""
        return [key for key in self._values if key not in known]

    def put(self, key: Key, value: Any | None) -> None:
        """Store a value, or remove it with ``None``; an equal value is no change."""
        self._pending.append((key, value))
        self._make_changes()

    def add_handler(self, changed: ChangeHandler) -> Callable[[], None]:
        """Call ``changed`` for all values, then for each change; return a function to remove it."""
        handler = _Handler(changed)
        outermost, self._notifying = not self._notifying, True
        try:
            self._handlers.append(handler)
            for value in tuple(self._values.values()):
                self._notify(handler, None, value)
        finally:
            self._notifying = not outermost
        self._make_changes()

        def remove() -> None:
            if handler in self._handlers:
                self._handlers.remove(handler)

        return remove

    def _make_changes(self) -> None:
        if self._notifying:
            return
        self._notifying = True
        try:
            while self._pending:
                self._change(*self._pending.popleft())
        finally:
            self._notifying = False

    def _change(self, key: Key, new: Any | None) -> None:
        old = self._values.get(key)
        if new is None:
            self._values.pop(key, None)
        else:
            self._values[key] = new
        if old != new:
            for handler in tuple(self._handlers):
                self._notify(handler, old, new)

    def _notify(self, handler: _Handler, old: Any | None, new: Any | None) -> None:
        # An earlier handler may have removed this one.
        if handler not in self._handlers:
            return
        try:
            handler.changed(old, new)
        except Exception:
            # A handler may raise anything; the other handlers are still notified.
            self._log.failure("a handler of changes of {what} failed", what=self._what)
