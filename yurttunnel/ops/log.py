"""Logging beyond ``twisted.logger``: stdlib logging of libraries, and floods of warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

_LEVELS: tuple[tuple[int, LogLevel], ...] = (
    (logging.CRITICAL, LogLevel.critical),
    (logging.ERROR, LogLevel.error),
    (logging.WARNING, LogLevel.warn),
    (logging.INFO, LogLevel.info),
)


class TwistedLogHandler(logging.Handler):
    """Forwards records of stdlib ``logging`` to ``twisted.logger``, under the same name."""

    def emit(self, record: logging.LogRecord) -> None:
        """Forward ``record``, with its traceback if it has one."""
        try:
            fields: dict[str, object] = {"text": record.getMessage()}
            if record.exc_info is not None and record.exc_info[1] is not None:
                _, error, traceback = record.exc_info
                fields["log_failure"] = Failure(error, type(error), traceback)
            Logger(namespace=record.name).emit(_level_of(record), "{text}", **fields)
        except Exception:
            # The contract of logging.Handler: a record that cannot be formatted must not
            # break the library that logs it.
            self.handleError(record)


def _level_of(record: logging.LogRecord) -> LogLevel:
    for number, level in _LEVELS:
        if record.levelno >= number:
            return level
    lowest: LogLevel = LogLevel.debug
    return lowest


def forward_standard_logging(level: int = logging.WARNING) -> Callable[[], None]:
    """Log what libraries log through stdlib ``logging`` at ``level`` or above; ``twist`` drops it.

    Called once while a command is set up. Returns a function that ends the forwarding.
    """
    handler = TwistedLogHandler(level)
    root = logging.getLogger()
    root.addHandler(handler)
    return lambda: root.removeHandler(handler)


SUPPRESSED = " ({suppressed} more like this were not shown)"
"""The text that :class:`RateLimitedLog` appends to the format of a message."""


@dataclass(slots=True)
class _Recent:
    shown_at: float
    suppressed: int = 0


class RateLimitedLog:
    """Rate-limits warnings that strangers can cause, such as failed handshakes and denied dials.

    Of all warnings with the same ``format`` one is logged every ``seconds``; the next one that is
    logged has the number of those suppressed. Fields may differ, so ``format`` must be a literal:
    the limiter then has one entry for each place in the code.
    """

    def __init__(self, clock: IReactorTime, log: Logger, seconds: float = 60.0) -> None:
        self._clock = clock
        self._log = log
        self._seconds = seconds
        self._recent: dict[str, _Recent] = {}

    def warn(self, format: str, **fields: object) -> None:
        """Log ``format``, filled with ``fields``, as a warning, unless it was logged recently."""
        self._show(LogLevel.warn, format, fields)

    def error(self, format: str, **fields: object) -> None:
        """Log an error, which needs an operator, with the same rate limit."""
        self._show(LogLevel.error, format, fields)

    def info(self, format: str, **fields: object) -> None:
        """Log information with the same rate limit."""
        self._show(LogLevel.info, format, fields)

    def _show(self, level: LogLevel, format: str, fields: dict[str, object]) -> None:
        now = self._clock.seconds()
        recent = self._recent.get(format)
        if recent is not None and now - recent.shown_at < self._seconds:
            recent.suppressed += 1
            return
        self._recent[format] = _Recent(now)
        if recent is not None and recent.suppressed:
            fields["suppressed"] = recent.suppressed
            format += SUPPRESSED
        self._log.emit(level, format, **fields)
