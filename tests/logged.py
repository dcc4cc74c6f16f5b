"""The log events of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import LogEvent, formatEvent, globalLogPublisher

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase


class Logged(list[LogEvent]):
    """The events that are logged until the test ends."""

    def __init__(self, case: SynchronousTestCase) -> None:
        super().__init__()
        globalLogPublisher.addObserver(self.append)
        case.addCleanup(globalLogPublisher.removeObserver, self.append)

    def texts(self, namespace: str = "yurttunnel", level: str | None = None) -> list[str]:
        """Return the messages of a part of the program, at one level or all levels."""
        return [
            formatEvent(event)
            for event in self
            if namespace in event["log_namespace"] and level in (None, event["log_level"].name)
        ]


def logged_lines(case: SynchronousTestCase, namespace: str = "yurttunnel") -> list[str]:
    """Return a list that collects the log lines of a part of the program until the test ends."""
    lines: list[str] = []

    def note(event: LogEvent) -> None:
        if event.get("log_namespace", "").startswith(namespace):
            lines.append(formatEvent(event))

    globalLogPublisher.addObserver(note)
    case.addCleanup(globalLogPublisher.removeObserver, note)
    return lines
