"""Logging beyond ``twisted.logger``: libraries that use stdlib logging, and floods of warnings."""

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
    """Passes records of stdlib ``logging`` on to ``twisted.logger``, under the same name."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass ``record`` on; a traceback that it carries goes with it."""
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
    """Show what libraries log by stdlib ``logging``, from ``level`` on; ``twist`` drops it.

    Called once while a command is composed. Returns a function that ends the forwarding.
    """
    handler = TwistedLogHandler(level)
    root = logging.getLogger()
    root.addHandler(handler)
    return lambda: root.removeHandler(handler)


SUPPRESSED = " ({suppressed} more like this were not shown)"
"""What :class:`RateLimitedLog` adds to the format of a message."""


@dataclass(slots=True)
class _Recent:
    shown_at: float
    suppressed: int = 0


class RateLimitedLog:
    """Shows a warning that strangers can cause, but not as often as they cause it.

    For refused handshakes, denied dials and the like: of all warnings with the same ``format``
    one is shown every ``seconds``, and the next one that is shown says how many were not. The
    fields may differ, so ``format`` must be a literal; then there is one entry for each place
    in the code and no more.
    """

    def __init__(self, clock: IReactorTime, log: Logger, seconds: float = 60.0) -> None:
        self._clock = clock
        self._log = log
        self._seconds = seconds
        self._recent: dict[str, _Recent] = {}

    def warn(self, format: str, **fields: object) -> None:
        """Log ``format``, filled with ``fields``, unless it was logged a moment ago."""
        self._show(LogLevel.warn, format, fields)

    def error(self, format: str, **fields: object) -> None:
        """Log what somebody has to mend, in the same way."""
        self._show(LogLevel.error, format, fields)

    def info(self, format: str, **fields: object) -> None:
        """Log what is no reason to worry, in the same way."""
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
