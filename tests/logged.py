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
