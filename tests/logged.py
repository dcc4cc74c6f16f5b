"""What is logged during a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import LogEvent, formatEvent, globalLogPublisher

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase


class Logged(list[LogEvent]):
    """The events from now on, until the test ends."""

    def __init__(self, case: SynchronousTestCase) -> None:
        super().__init__()
        globalLogPublisher.addObserver(self.append)
        case.addCleanup(globalLogPublisher.removeObserver, self.append)

    def texts(self, namespace: str = "yurttunnel", level: str | None = None) -> list[str]:
        """Return what a part of the program has said, at one level or at all of them."""
        return [
            formatEvent(event)
            for event in self
            if namespace in event["log_namespace"] and level in (None, event["log_level"].name)
        ]


def logged_lines(case: SynchronousTestCase, namespace: str = "yurttunnel") -> list[str]:
    """Return a list to which each line of a part of the program is added, until the test ends."""
    lines: list[str] = []

    def note(event: LogEvent) -> None:
        if event.get("log_namespace", "").startswith(namespace):
            lines.append(formatEvent(event))

    globalLogPublisher.addObserver(note)
    case.addCleanup(globalLogPublisher.removeObserver, note)
    return lines
