"""The most recent warnings and errors of the log, for the status page."""

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
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import Column, Content, element, joined, mark, table

MAX_KEPT = 50
"""The maximum number of places in the code whose last message is kept."""

_MAX_TEXT = 500
"""The maximum length of a text in characters."""

_NAMES = {LogLevel.warn: "warning", LogLevel.error: "error", LogLevel.critical: "critical"}


@dataclass(slots=True)
class RecentEvent:
    """A warning or an error; ``last`` is when it was last logged, in seconds since the epoch.

    ``level`` is ``warning``, ``error`` or ``critical``. ``count`` is how often it was logged,
    possibly with different texts, of which ``logged`` is the last.
    """

    level: str
    source: str
    logged: str
    last: float
    count: int = 1
    _text: str | None = None

    @property
    def text(self) -> str:
        """The message, redacted, in one line.

        No message is meant to contain a secret, but errors of libraries quote their input, and the
        page has more readers than the log. Redaction happens when the page is read: it takes a
        millisecond, and strangers may cause many messages.
        """
        if self._text is None:
            text = " ".join(redact(self.logged).split())
            self._text = text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
        return self._text


@implementer(ILogObserver)
class RecentEvents(Service):
    """Keeps the last warning or error of each place in the code, while it runs.

    A place is a level, namespace and format: a message that strangers can vary displaces no others.
    Warnings are evicted before errors.
    """

    def __init__(self, publisher: LogPublisher = globalLogPublisher) -> None:
        self._publisher = publisher
        self._events: OrderedDict[tuple[str, str, str], RecentEvent] = OrderedDict()

    def newest_first(self) -> Iterable[RecentEvent]:
        """Return the events, newest first."""
        return reversed(self._events.values())

    def startService(self) -> None:
        super().startService()
        self._publisher.addObserver(self)

    def stopService(self) -> None:
        super().stopService()
        self._publisher.removeObserver(self)

    def __call__(self, event: LogEvent) -> None:
        """Keep ``event`` if it is a warning or worse."""
        level = _NAMES.get(event.get("log_level"))
        if level is None:
            return
        namespace = str(event.get("log_namespace", ""))
        call_site = level, namespace, str(event.get("log_format", "")).removesuffix(SUPPRESSED)
        known = self._events.pop(call_site, None)
        count = 1 if known is None else known.count + 1
        time = event.get("log_time", 0.0)
        self._events[call_site] = RecentEvent(level, namespace, _logged(event), time, count)
        if len(self._events) > MAX_KEPT:
            warnings = (each for each, kept in self._events.items() if kept.level == "warning")
            del self._events[next(warnings, next(iter(self._events)))]


def event_table(events: Iterable[RecentEvent], now: datetime.datetime) -> Content:
    """Return the table of ``events``, in their order."""
    columns: list[Column[RecentEvent]] = [
        Column("Message", lambda one: joined(one.text, element("small", one.source)), "name text"),
        Column("Level", lambda one: mark("warn" if one.level == "warning" else "bad", one.level)),
        Column(
            "Last",
            lambda one: formatting.ago(formatting.at(one.last), now),
            order=lambda one: now.timestamp() - one.last,
        ),
        Column("Times", lambda one: f"{one.count:,}", "number", lambda one: one.count),
    ]
    return table("The last warnings and errors of the log", columns, events)


def _logged(event: LogEvent) -> str:
    """Return the beginning of the message; for a failure, the error without its traceback."""
    text = formatEvent(event)
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        what = f"{failure.type.__name__ if failure.type else 'error'}: {failure.getErrorMessage()}"
        text = f"{text}: {what}" if text else what
    return text[: 4 * _MAX_TEXT]
