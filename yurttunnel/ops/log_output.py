"""How messages are written: as lines for people, or as JSON for programs that collect logs."""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import IO, Any

from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    LogEvent,
    Logger,
    LogLevel,
    formatEvent,
    formatEventAsClassicLogText,
    formatTime,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.ops.log_file import LogFile
from yurttunnel.ops.log_floods import FloodLimit
from yurttunnel.ops.log_levels import WHOLE_LINE, ShownLevels

_NO_FIELDS = frozenset(
    # Those of every line, what Twisted adds for observers of its old kind, and that of WHOLE_LINE,
    # which is the message.
    ("time", "level", "namespace", "message", "traceback", "format", "isError", "system", "line")
)

_ESCAPED = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))}
# Between the lines of one message, as Twisted writes them.
del _ESCAPED[ord("\n")], _ESCAPED[ord("\t")]


def text_line(event: LogEvent) -> str | None:
    r"""Format ``event`` as ``time [namespace#level] message``, a traceback below it, indented.

    Control characters are written as ``\xNN``: what strangers have sent may be quoted in a
    message, and must neither move a terminal's cursor nor begin a line. ``None`` for an event
    without a message.
    """
    line: str | None
    if event.get("log_format") == WHOLE_LINE:
        # As below, without a look at what else there could be in the format and in the event.
        origin = f"{event['log_namespace']}#{event['log_level'].name}"
        text = event["line"].replace("\n", "\n\t")
        line = f"{_time_in_text(event['log_time'])} [{origin}] {text}\n"
    else:
        line = formatEventAsClassicLogText(event, _time_in_text)
    if line is None or line[:-1].isprintable():
        return line
    # Surrogates, which bytes that are no UTF-8 have become, cannot be written to a file.
    return line.translate(_ESCAPED).encode("utf-8", "backslashreplace").decode("utf-8")


def json_line(event: LogEvent) -> str | None:
    """Format ``event`` as one JSON object (RFC 8259) on a line, in ASCII.

    ``time`` is in UTC (ISO 8601), ``level`` one of debug, info, warn, error and critical,
    ``namespace`` the part of the program and ``message`` the text that people would get. Beside
    them are the event's fields that are texts, numbers or truth values, such as ``node`` and
    ``request_id``. ``traceback`` is there when an error is reported. ``None`` for an event
    without a message.
    """
    message, failure = formatEvent(event), event.get("log_failure")
    if not message and failure is None:
        return None
    line: dict[str, object] = {
        "time": _time(event),
        "level": getattr(event.get("log_level"), "name", "info"),
        "namespace": event.get("log_namespace", "-"),
        "message": message,
    }
    line |= {
        name: value
        for name, value in event.items()
        if not name.startswith("log_") and name not in _NO_FIELDS and _is_simple(value)
    }
    if isinstance(failure, Failure):
        line["traceback"] = failure.getTraceback()
    return json.dumps(line) + "\n"


FORMATS: dict[str, Callable[[LogEvent], str | None]] = {"text": text_line, "json": json_line}
"""What ``--log-format`` may be."""


@implementer(ILogObserver)
class LogOutput:
    """Writes events to ``file``, in one of :data:`FORMATS`, and tells when lines are lost.

    While they are, it is the status page that shows it.
    """

    _log = Logger()

    def __init__(self, file: LogFile, format: Callable[[LogEvent], str | None]) -> None:
        self._file = file
        self._format = format
        self._losing = False
        self._lost_before = 0

    def __call__(self, event: LogEvent) -> None:
        """See :class:`ILogObserver`."""
        line = self._format(event)
        if not line:
            return
        file = self._file
        lost = file.lost
        file.write(line.encode("utf-8", "backslashreplace"))
        # What is said here comes back here: what it depends on is set before.
        if file.lost != self._lost_before and not self._losing:
            self._losing = True
            self._log.warn(
                "The log cannot be written: {problem}; its lines are lost, traffic goes on",
                problem=file.problem,
            )
        elif self._losing and file.lost == lost and file.keeps_up:
            count, self._lost_before, self._losing = lost - self._lost_before, lost, False
            self._log.warn("The log is written again; {lost} lines were lost", lost=count)


def take_over_log(
    twist: MutableMapping[str, Any],
    format: str,
    verbosity: int | None,
    levels: ShownLevels,
) -> None:
    """Have ``twist`` write its log in one of :data:`FORMATS`, as far as ``levels`` shows it.

    ``twist`` are its own options. It begins to log by what they say after the services have been
    started, so that nothing is written in another form before. It has parsed its ``--log-format``
    by now, but does not say whether that was given, and its default is its own JSON where there
    is no terminal; so ``format`` counts alone. Its ``--log-level`` counts where ``verbosity`` is
    ``None``, and its ``--log-file`` always.
    """
    if verbosity is None:
        levels.set(twist["logLevel"], requests=True)
    else:
        levels.set_verbosity(verbosity)

    def observer(file: IO[Any] | None) -> ILogObserver:
        log_file = LogFile(_descriptor(file))
        # Behind what stops the services, which have something to say.
        twist["reactor"].addSystemEventTrigger("after", "shutdown", log_file.close)
        limited = FloodLimit(LogOutput(log_file, FORMATS[format]))
        return FilteringLogObserver(limited, [levels])

    twist["logFormat"] = format
    twist["fileLogObserverFactory"] = observer
    # Its own filter is before ours and cannot be changed later.
    twist["logLevel"] = LogLevel.debug


def _descriptor(file: IO[Any] | None) -> int:
    """Return where to write; there is no file where the process was begun without (``2>&-``)."""
    if file is None:
        # For good: whatever had its number later would get the log.
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    file.flush()
    return file.fileno()


def _time_in_text(when: float | None) -> str:
    """Return the time of an event as Twisted writes it, to the second."""
    return formatTime(when) if when is None else _second_in_text(int(when))


@lru_cache(1)
def _second_in_text(when: int) -> str:
    """Return a second; most lines are of the same one as the line before."""
    return formatTime(when)


def _time(event: LogEvent) -> str | None:
    seconds = event.get("log_time")
    if seconds is None:
        return None
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_simple(value: object) -> bool:
    """Return whether JSON has ``value``; infinity and NaN it has not."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | bool)
