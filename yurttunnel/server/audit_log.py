"""The audit log: lines that are not lost without a word, and hold nothing up.

Lines are collected for a moment and written together in a thread, since a disk can take seconds,
and a pipe that nobody reads takes for ever. What cannot be written, and what comes while too much
waits, is counted as lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from zope.interface import Interface

from yurttunnel.metrics import Metric, counter
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.waiting import within

FLUSH_DELAY = 0.1
"""Seconds for which lines are collected, and so what a process that is killed may lose."""

MAX_WAITING = 4 * 1024 * 1024
"""Bytes of lines that may wait, beside as many that are being written."""

CLOSE_TIMEOUT = 5.0
"""Seconds in which the last lines have to be written when the process stops."""

MAX_LINE = 4095
"""Bytes of a line without its end: a pipe takes 4096 at once (``PIPE_BUF`` of pipe(7)), so that
lines on standard output are not torn apart by those of the log."""

SLOW = 3.0
"""Seconds after which a write that has not ended is trouble: a disk that hangs, or a pipe that
nobody reads."""

_SHORT = 120
"""Characters of a text in a line that would be too long, as they are escaped."""

_LONGEST_ESCAPE = 12
"""Characters that JSON makes of one outside the basic plane: a pair of surrogates."""

_LOOK = "look at the disk, or at who reads standard output"

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Written:
    """What has become of some lines: how many were written, and what is the matter, if anything."""

    lines: int
    problem: str = ""


class IAuditSink(Interface):
    """Where lines go; called in a thread, one call at a time."""

    def append(lines: list[bytes]) -> Written:
        """Write ``lines``, each with its end, in their order and as long as that succeeds."""

    def close() -> None:
        """Let go of the file."""


@dataclass(slots=True)
class AuditStats:
    """Totals of lines since the process started."""

    written: int = 0
    lost: int = 0


METRICS: tuple[Metric[AuditStats], ...] = (
    counter(
        "yurttunnel_server_audit_lines",
        "Lines written to the audit log.",
        lambda stats: stats.written,
    ),
    counter(
        "yurttunnel_server_audit_lines_lost",
        "Lines of the audit log that could not be written: the disk is full or too slow, or the"
        " file or its directory is not writable; the log has the reason. Alert on any increase.",
        lambda stats: stats.lost,
    ),
)


def format_line(record: Mapping[str, Value]) -> bytes:
    """Write a record as one line of JSON, in ASCII, of at most :data:`MAX_LINE` bytes and its end.

    In a record that is too long all texts are cut; those that were have ``...`` at their end.
    """
    line = json.dumps(record, separators=(",", ":"))
    if len(line) > MAX_LINE:
        short = {
            key: _cut(value) if isinstance(value, str) else value for key, value in record.items()
        }
        line = json.dumps(short, separators=(",", ":"))
    return line.encode("ascii") + b"\n"


def _cut(text: str) -> str:
    short = text[:_SHORT]
    if len(json.dumps(short)) > _SHORT + 2:
        short = text[: _SHORT // _LONGEST_ESCAPE]
    return text if short == text else f"{short}..."


class AuditLog(Service):
    """Takes lines at any time, and has ``sink`` write them by ``in_thread``.

    ``in_thread(function, argument)`` calls the function in a thread, as :func:`in_own_thread` does.
    It is to be stopped behind all that has lines to write.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        sink: IAuditSink,
        in_thread: Callable[[Callable[[list[bytes]], Written], list[bytes]], Deferred[Written]],
    ) -> None:
        self.stats = AuditStats()
        self.problem: str | None = None
        """Why lines are lost now, or are about to be; ``None`` when they are not."""
        self._clock = clock
        self._sink = sink
        self._in_thread = in_thread
        self._warnings = RateLimitedLog(clock, self._log)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._task: Deferred[None] | None = None
        self._closed = False
        self._lost_before = 0

    def write(self, line: bytes) -> None:
        """Have ``line``, with its end, written soon."""
        if self._closed or self._waiting_bytes + len(line) > MAX_WAITING:
            self._begin_trouble(f"lines come faster than they are written: {_LOOK}")
            self.stats.lost += 1
            return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._task is None:
            # Its owner is this service: it ends with the last line.
            self._task = Deferred.fromCoroutine(self._write_waiting())

    def stopService(self) -> Deferred[None]:
        """Write what waits, within :data:`CLOSE_TIMEOUT`, and let go of the file."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        # Streams that were just ended tell of it in the next turn.
        await deferLater(self._clock, 0)
        if self._task is None or await within(self._clock, CLOSE_TIMEOUT, [self._task]):
            self._closed = True
            self._sink.close()
            return
        self._closed = True
        self._log.warn(
            "The last lines of the audit log were not written within {seconds:g} s",
            seconds=CLOSE_TIMEOUT,
        )

    async def _write_waiting(self) -> None:
        while self._waiting:
            await deferLater(self._clock, FLUSH_DELAY)
            lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
            await self._write(lines)
        self._task = None

    async def _write(self, lines: list[bytes]) -> None:
        lost = self.stats.lost
        slow = self._clock.callLater(
            SLOW, self._begin_trouble, f"a write takes more than {SLOW:g} s: {_LOOK}"
        )
        try:
            written = await self._in_thread(self._sink.append, lines)
        except Exception as error:
            # Whatever it is, the lines that follow are to be written.
            self._log.failure("Defect: writing the audit log failed")
            written = Written(0, repr(error))
        finally:
            if slow.active():
                slow.cancel()
        self.stats.written += written.lines
        if written.problem:
            self._begin_trouble(written.problem)
            self.stats.lost += len(lines) - written.lines
        elif self.problem is not None and self.stats.lost == lost:
            self._log.info(
                "The audit log is written again; {lost} lines were lost meanwhile",
                lost=lost - self._lost_before,
            )
            self.problem = None

    def _begin_trouble(self, problem: str) -> None:
        """Report a problem, before lines are counted as lost by it."""
        if self.problem is None:
            self._lost_before = self.stats.lost
            self._warnings.warn(
                "The audit log cannot be written: {problem}; traffic goes on", problem=problem
            )
        self.problem = problem
