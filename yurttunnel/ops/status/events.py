"""The last warnings and errors of the log, kept for the status page."""

from __future__ import annotations

import datetime
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

from yurttunnel.ops.diagnose.redaction import redact
from yurttunnel.ops.log import SUPPRESSED
from yurttunnel.ops.status import words
from yurttunnel.ops.status.markup import Column, Content, element, joined, mark, table

KEPT = 50
"""Of how many places in the code the last one is kept."""

_LONGEST = 500
"""Characters of a text that are kept."""

_NAMES = {LogLevel.warn: "warning", LogLevel.error: "error", LogLevel.critical: "critical"}


@dataclass(slots=True)
class RecentEvent:
    """A warning or an error: ``last`` is when it was logged last, in seconds since the epoch.

    ``level`` is ``warning``, ``error`` or ``critical``. ``count`` says how often it was logged,
    perhaps with another text, of which ``logged`` is the last.
    """

    level: str
    source: str
    logged: str
    last: float
    count: int = 1
    _text: str | None = None

    @property
    def text(self) -> str:
        """What was logged, in one line that may be shown.

        No message is meant to hold a secret. Errors of libraries quote what they were given,
        though, and the page is read by more people than the log. That is looked for once somebody
        reads it: it takes a millisecond, and strangers may bring about many messages.
        """
        if self._text is None:
            text = " ".join(redact(self.logged).split())
            self._text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
        return self._text


@implementer(ILogObserver)
class RecentEvents(Service):
    """Keeps the last warning or error of each place in the code, while it runs.

    A place is what has the same level, namespace and format: whatever strangers make a message
    say, it leaves the others where they are. Warnings make room for errors.
    """

    def __init__(self, publisher: LogPublisher = globalLogPublisher) -> None:
        self._publisher = publisher
        self._events: OrderedDict[tuple[str, str, str], RecentEvent] = OrderedDict()

    def newest_first(self) -> Iterable[RecentEvent]:
        """Return them."""
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
        namespace = str(event.get("log_namespace", ""))
        place = level, namespace, str(event.get("log_format", "")).removesuffix(SUPPRESSED)
        known = self._events.pop(place, None)
        count = 1 if known is None else known.count + 1
        time = event.get("log_time", 0.0)
        self._events[place] = RecentEvent(level, namespace, _logged(event), time, count)
        if len(self._events) > KEPT:
            warnings = (each for each, kept in self._events.items() if kept.level == "warning")
            del self._events[next(warnings, next(iter(self._events)))]


def event_table(events: Iterable[RecentEvent], now: datetime.datetime) -> Content:
    """Make the table of warnings and errors, in their order."""
    columns: list[Column[RecentEvent]] = [
        Column("Message", lambda one: joined(one.text, element("small", one.source)), "name text"),
        Column("Level", lambda one: mark("warn" if one.level == "warning" else "bad", one.level)),
        Column(
            "Last",
            lambda one: words.ago(words.at(one.last), now),
            order=lambda one: now.timestamp() - one.last,
        ),
        Column("Times", lambda one: f"{one.count:,}", "number", lambda one: one.count),
    ]
    return table("The last warnings and errors of the log", columns, events)


def _logged(event: LogEvent) -> str:
    """Return the beginning of the message; of a failure, what happened, but not where."""
    text = formatEvent(event)
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        what = f"{failure.type.__name__ if failure.type else 'error'}: {failure.getErrorMessage()}"
        text = f"{text}: {what}" if text else what
    return text[: 4 * _LONGEST]
