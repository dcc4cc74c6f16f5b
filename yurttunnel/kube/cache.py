"""What is kept of objects, and whom to tell when it changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

Key = tuple[str, str]
"""Namespace, which is empty for objects that are in none, and name."""

Changed = Callable[[Any | None, Any | None], object]
"""Called with what was kept before, and what is kept now; ``None`` when there is nothing."""


@dataclass(frozen=True, eq=False, slots=True)
class _Handler:
    """Somebody to tell; compared by identity, since one function may be added twice."""

    changed: Changed


class Cache:
    """Values by key, and handlers that are told of each change in its order.

    A change that is asked for while a handler is told of another is made after that, so that
    whoever looks never sees more than what all handlers are being told.
    """

    _log = Logger()

    def __init__(self, what: str) -> None:
        self._what = what
        self._values: dict[Key, Any] = {}
        self._handlers: list[_Handler] = []
        self._pending: deque[tuple[Key, Any | None]] = deque()
        self._telling = False

    def get(self, key: Key) -> Any | None:
        """Return a value, ``None`` when there is none."""
        return self._values.get(key)

    def values(self) -> Collection[Any]:
        """Return all values, as they are at any time that they are looked at."""
        return self._values.values()

    def keys_but(self, known: Collection[Key]) -> list[Key]:
        """Return the keys that are not in ``known``."""
        return [key for key in self._values if key not in known]

    def put(self, key: Key, value: Any | None) -> None:
        """Keep a value, or with ``None`` forget it; an equal one is no change."""
        self._pending.append((key, value))
        self._make_changes()

    def add_handler(self, changed: Changed) -> Callable[[], None]:
        """Call ``changed`` for all that is there, and then for each change; the result ends it."""
        handler = _Handler(changed)
        outermost, self._telling = not self._telling, True
        try:
            self._handlers.append(handler)
            for value in tuple(self._values.values()):
                self._tell(handler, None, value)
        finally:
            self._telling = not outermost
        self._make_changes()

        def remove() -> None:
            if handler in self._handlers:
                self._handlers.remove(handler)

        return remove

    def _make_changes(self) -> None:
        if self._telling:
            return
        self._telling = True
        try:
            while self._pending:
                self._change(*self._pending.popleft())
        finally:
            self._telling = False

    def _change(self, key: Key, new: Any | None) -> None:
        old = self._values.get(key)
        if new is None:
            self._values.pop(key, None)
        else:
            self._values[key] = new
        if old != new:
            for handler in tuple(self._handlers):
                self._tell(handler, old, new)

    def _tell(self, handler: _Handler, old: Any | None, new: Any | None) -> None:
        # One that was told before it may have ended it.
        if handler not in self._handlers:
            return
        try:
            handler.changed(old, new)
        except Exception:
            # Whatever it is, it is the handler's, and the others are told.
            self._log.failure("a handler of changes of {what} failed", what=self._what)
