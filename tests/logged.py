"""The log of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher

if TYPE_CHECKING:
    from constantly import NamedConstant
    from twisted.trial.unittest import SynchronousTestCase


class Logged(list[str]):
    """The messages that are logged until the test ends, at ``level`` or above.

    Their log namespaces contain one of ``namespaces``, if there are any; ``events`` has the events.
    """

    def __init__(
        self, case: SynchronousTestCase, *namespaces: str, level: NamedConstant = LogLevel.debug
    ) -> None:
        super().__init__()
        self.events: list[LogEvent] = []
        self._namespaces = namespaces or ("",)
        self._level = level
        globalLogPublisher.addObserver(self._note)
        case.addCleanup(globalLogPublisher.removeObserver, self._note)

    def _note(self, event: LogEvent) -> None:
        namespace = event.get("log_namespace", "")
        if event["log_level"] >= self._level and any(n in namespace for n in self._namespaces):
            self.events.append(event)
            self.append(formatEvent(event))
