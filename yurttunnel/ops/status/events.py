"""The last warnings and errors of the log, kept for the status page."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from twisted.application.service import Service
from twisted.logger import (
    ILogObserver,
    LogEvent,
    LogLevel,
    LogPublisher,
    formatEvent,
    globalLogPublisher,
)
from twisted.python.failure import Failure
from zope.interface import implementer

KEPT = 50
"""How many different ones are kept."""

_LONGEST = 500
"""Characters of a text that are kept."""

_NAMES = {LogLevel.warn: "warning", LogLevel.error: "error", LogLevel.critical: "critical"}

# No message is meant to hold a secret. Errors of libraries quote what they were given, though, and
# this page is read by more people than the log: join tokens, bearer tokens and JWTs go.
_SECRETS = re.compile(
    r"[0-9a-f]{16}\.[0-9a-f]{32}(?=\.sha256:)"
    r"|(?<=bearer )\S+"
    r"|eyJ[\w-]+\.[\w-]+\.[\w-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(slots=True)
class RecentEvent:
    """A warning or an error: ``last`` is when it was logged last, in seconds since the epoch.

    ``level`` is ``warning``, ``error`` or ``critical``; ``count`` says how often it was logged.
    """

    level: str
    source: str
    text: str
    last: float
    count: int = 1


@implementer(ILogObserver)
class RecentEvents(Service):
    """Keeps the last :data:`KEPT` warnings and errors while it runs; the same one counts up."""

    def __init__(self, publisher: LogPublisher = globalLogPublisher) -> None:
        self._publisher = publisher
        self._events: OrderedDict[tuple[str, str, str], RecentEvent] = OrderedDict()

    def newest_first(self) -> Iterable[RecentEvent]:
        """Give them."""
        return reversed(self._events.values())

    def startService(self) -> None:
        """Begin to listen to the log."""
        super().startService()
        self._publisher.addObserver(self)

    def stopService(self) -> None:
        """Listen no more."""
        super().stopService()
        self._publisher.removeObserver(self)

    def __call__(self, event: LogEvent) -> None:
        """Keep ``event`` if it is bad enough."""
        level = _NAMES.get(event.get("log_level"))
        if level is None:
            return
        key = level, str(event.get("log_namespace", "")), _text(event)
        known = self._events.pop(key, None)
        count = 1 if known is None else known.count + 1
        self._events[key] = RecentEvent(*key, event.get("log_time", 0.0), count)
        if len(self._events) > KEPT:
            _ = self._events.popitem(last=False)


def _text(event: LogEvent) -> str:
    """Write the message in one line; of a failure, what happened, but not where."""
    text = formatEvent(event)
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        what = f"{failure.type.__name__ if failure.type else 'error'}: {failure.getErrorMessage()}"
        text = f"{text}: {what}" if text else what
    text = _SECRETS.sub("(secret)", " ".join(text[: 4 * _LONGEST].split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
