"""The output formats of the log: lines for people, or JSON for log collectors."""

from __future__ import annotations

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

from yurttunnel.ops.clocks import millisecond_time
from yurttunnel.ops.log_file import LogFile
from yurttunnel.ops.log_flood_limit import FloodLimit
from yurttunnel.ops.log_levels import PREFORMATTED, LogLevelFilter

_NO_FIELDS = frozenset(
    # The fields that each line shows anyway, those that Twisted adds for its legacy observers, and
    # that of PREFORMATTED, which is the message.
    ("time", "level", "namespace", "message", "traceback", "format", "isError", "system", "line")
)

_ESCAPED = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))}
# The separator of the lines of one message, as in Twisted.
del _ESCAPED[ord("\n")], _ESCAPED[ord("\t")]


def text_line(event: LogEvent) -> str | None:
    r"""Format ``event`` as ``time [namespace#level] message``, followed by an indented traceback.

    Control characters are written as ``\xNN``: a message may quote what strangers have sent, which
    must neither move a terminal's cursor nor start a new line. Returns ``None`` for an event
    without a message.
    """
    line: str | None
    if event.get("log_format") == PREFORMATTED:
        # The fast path, which equals what follows for these events.
        origin = f"{event['log_namespace']}#{event['log_level'].name}"
        text = event["line"].replace("\n", "\n\t")
        line = f"{_time_in_text(event['log_time'])} [{origin}] {text}\n"
    else:
        line = formatEventAsClassicLogText(event, _time_in_text)
    if line is None or line[:-1].isprintable():
        return line
    # Surrogates, which stand for bytes that are not UTF-8, cannot be written to a file.
    return line.translate(_ESCAPED).encode("utf-8", "backslashreplace").decode("utf-8")


def json_line(event: LogEvent) -> str | None:
    """Format ``event`` as one JSON object (RFC 8259) on a line, in ASCII.

    ``time`` is in UTC (ISO 8601); ``level`` is debug, info, warn, error or critical; ``namespace``
    is the part of the program; ``message`` is the text as in the other format. Fields of the event
    that are strings, numbers or booleans, such as ``node`` and ``request_id``, are added. An event
    with an error has ``traceback``. Returns ``None`` for an event without a message.
    """
    message, failure = formatEvent(event), event.get("log_failure")
    if not message and failure is None:
        return None
    seconds = event.get("log_time")
    line: dict[str, object] = {
        "time": None if seconds is None else millisecond_time(seconds),
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
"""The values of ``--log-format``."""


@implementer(ILogObserver)
class LogOutput:
    """Writes events to ``file``, in one of :data:`FORMATS`, and logs how many lines were lost.

    While lines are being lost, the status page shows that.
    """

    _log = Logger()

    def __init__(self, file: LogFile, format: Callable[[LogEvent], str | None]) -> None:
        self._file = file
        self._format = format
        self._losing = False
        self._lost_before = 0

    def __call__(self, event: LogEvent) -> None:
        line = self._format(event)
        if not line:
            return
        file = self._file
        lost = file.lost
        file.write(line.encode("utf-8", "backslashreplace"))
        # The message below comes back to this method: set first what that depends on.
        if file.lost != self._lost_before and not self._losing:
            self._losing = True
            self._log.warn(
                "The log cannot be written: {problem}; its lines are lost, traffic is not affected",
                problem=file.problem,
            )
        elif self._losing and file.lost == lost and file.has_kept_up:
            count, self._lost_before, self._losing = lost - self._lost_before, lost, False
            self._log.warn("The log is written again; {lost} lines were lost", lost=count)


def take_over_log(
    twist: MutableMapping[str, Any], format: str, verbosity: int | None, levels: LogLevelFilter
) -> None:
    """Make ``twist`` write its log in one of :data:`FORMATS`, filtered by ``levels``.

    ``twist`` are its own options. It starts logging after the services have started, so nothing is
    written in another format before. It has parsed its ``--log-format`` by now without recording
    whether the flag was given, and defaults to its own JSON if there is no terminal; so only
    ``format`` counts. Its ``--log-level`` applies if ``verbosity`` is ``None``, and its
    ``--log-file`` always.
    """
    if verbosity is None:
        levels.set(twist["logLevel"], requests=True)
    else:
        levels.set_verbosity(verbosity)

    def observer(file: IO[Any] | None) -> ILogObserver:
        log_file = LogFile(_descriptor(file))
        # Registered after what stops the services, which still log.
        twist["reactor"].addSystemEventTrigger("after", "shutdown", log_file.close)
        limited = FloodLimit(LogOutput(log_file, FORMATS[format]))
        return FilteringLogObserver(limited, [levels])

    twist["logFormat"] = format
    twist["fileLogObserverFactory"] = observer
    # Twist's own filter comes before ours and cannot be changed later.
    twist["logLevel"] = LogLevel.debug


def _descriptor(file: IO[Any] | None) -> int:
    """Return the descriptor to write to; a process may lack that file (``2>&-``)."""
    if file is None:
        # Kept open for good: otherwise whatever got its number later would receive the log.
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    file.flush()
    return file.fileno()


def _time_in_text(when: float | None) -> str:
    """Return the time of an event in Twisted's format, to the second."""
    return formatTime(when) if when is None else _second_in_text(int(when))


@lru_cache(1)
def _second_in_text(when: int) -> str:
    """Format a second; cached because most lines share the second of the line before."""
    return formatTime(when)


def _is_simple(value: object) -> bool:
    """Return whether JSON can represent ``value``; it cannot represent infinity and NaN."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | bool)
