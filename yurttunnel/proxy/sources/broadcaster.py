"""Telling listeners that something has changed, once for all that changes at the same time."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger


class Broadcaster:
    """Calls its listeners in the next turn of the reactor, however often it is notified before."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._listeners: list[Callable[[], object]] = []
        self._due: IDelayedCall | None = None

    def add(self, listener: Callable[[], object]) -> None:
        """Have ``listener`` called, behind those that were added before it."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Have all listeners called."""
        if self._due is None:
            self._due = self._clock.callLater(0, self._tell)

    def stop(self) -> None:
        """Forget what has changed last."""
        due, self._due = self._due, None
        if due is not None:
            due.cancel()

    def _tell(self) -> None:
        self._due = None
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception:
                # Whatever it is, it is the listener's, and the others are told.
                self._log.failure("Defect: a listener to what is to be served has failed")
