"""The audit log's writer: it counts and reports lost lines, and blocks nothing.

Lines are collected briefly and written together in a thread, since a disk can take seconds, and a
pipe without a reader blocks forever. Lines that cannot be written, and lines that arrive while too
much is waiting, are counted as lost.
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
from yurttunnel.ops.timeouts import all_fired_within

FLUSH_DELAY = 0.1
"""Seconds for which lines are collected, and the most that a killed process loses."""

MAX_QUEUED_BYTES = 4 * 1024 * 1024
"""Bytes of lines that may wait, in addition to as many that are being written."""

CLOSE_TIMEOUT = 5.0
"""Seconds for writing the last lines when the process stops."""

MAX_LINE = 4095
"""The maximum length of a line in bytes, without its end: a pipe writes 4096 bytes atomically
(``PIPE_BUF`` of pipe(7)), so lines on standard output are not interleaved with those of the log."""

SLOW_WRITE = 3.0
"""Seconds after which a pending write is reported: the disk hangs, or a pipe has no reader."""

_TRUNCATED_LENGTH = 120
"""Characters, with escapes, of each text in a line that would be too long."""

_MAX_ESCAPE = 12
"""Characters of a JSON escape outside the basic plane: a surrogate pair."""

_HINT = "check the disk, or the reader of standard output"

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write: the number of lines written, and the problem, if any."""

    lines: int
    problem: str = ""


class IAuditSink(Interface):
    """The destination of lines; called in a thread, one call at a time."""

    def append(lines: list[bytes]) -> WriteResult:
        """Write ``lines``, which include their ends, in order until a write fails."""

    def close() -> None:
        """Close the file."""


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
    """Format a record as a line of JSON, in ASCII, of at most :data:`MAX_LINE` bytes and its end.

    If a record is too long, all its texts are truncated, with ``...`` at their end.
    """
    line = json.dumps(record, separators=(",", ":"))
    if len(line) > MAX_LINE:
        short = {
            key: _truncate(value) if isinstance(value, str) else value
            for key, value in record.items()
        }
        line = json.dumps(short, separators=(",", ":"))
    return line.encode("ascii") + b"\n"


def _truncate(text: str) -> str:
    short = text[:_TRUNCATED_LENGTH]
    if len(json.dumps(short)) > _TRUNCATED_LENGTH + 2:
        short = text[: _TRUNCATED_LENGTH // _MAX_ESCAPE]
    return text if short == text else f"{short}..."


class AuditLog(Service):
    """Accepts lines at any time, and has ``sink`` write them by ``in_thread``.

    ``in_thread(function, argument)`` calls the function in a thread, like
    :func:`run_in_new_thread`. Stop it after everything that writes lines.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        sink: IAuditSink,
        in_thread: Callable[
            [Callable[[list[bytes]], WriteResult], list[bytes]], Deferred[WriteResult]
        ],
    ) -> None:
        self.stats = AuditStats()
        self.problem: str | None = None
        """Why lines are lost now, or are about to be; ``None`` if none are."""
        self._clock = clock
        self._sink = sink
        self._in_thread = in_thread
        self._warnings = RateLimitedLog(clock, self._log)
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._task: Deferred[None] | None = None
        self._closed = False
        self._lost_before = 0

    def write(self, line: bytes) -> None:
        """Queue ``line``, which includes its end."""
        if self._closed or self._queued_bytes + len(line) > MAX_QUEUED_BYTES:
            self._report_problem(f"lines come faster than they are written: {_HINT}")
            self.stats.lost += 1
            return
        self._queued.append(line)
        self._queued_bytes += len(line)
        if self._task is None:
            # Owned by this service: it ends with the last line.
            self._task = Deferred.fromCoroutine(self._write_queued())

    def stopService(self) -> Deferred[None]:
        """Write the queued lines, within :data:`CLOSE_TIMEOUT`, and close the file."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        # Streams that have just ended report it in the next iteration.
        await deferLater(self._clock, 0)
        if self._task is None or await all_fired_within(self._clock, CLOSE_TIMEOUT, [self._task]):
            self._closed = True
            self._sink.close()
            return
        self._closed = True
        self._log.warn(
            "The last lines of the audit log were not written within {seconds:g} s",
            seconds=CLOSE_TIMEOUT,
        )

    async def _write_queued(self) -> None:
        while self._queued:
            await deferLater(self._clock, FLUSH_DELAY)
            lines, self._queued, self._queued_bytes = self._queued, [], 0
            await self._write(lines)
        self._task = None

    async def _write(self, lines: list[bytes]) -> None:
        lost = self.stats.lost
        slow = self._clock.callLater(
            SLOW_WRITE, self._report_problem, f"a write takes more than {SLOW_WRITE:g} s: {_HINT}"
        )
        try:
            written = await self._in_thread(self._sink.append, lines)
        except Exception as error:
            # Whatever fails, the following lines must be written.
            self._log.failure("Defect: writing the audit log failed")
            written = WriteResult(0, repr(error))
        finally:
            if slow.active():
                slow.cancel()
        self.stats.written += written.lines
        if written.problem:
            self._report_problem(written.problem)
            self.stats.lost += len(lines) - written.lines
        elif self.problem is not None and self.stats.lost == lost:
            self._log.info(
                "The audit log is written again; {lost} lines were lost meanwhile",
                lost=lost - self._lost_before,
            )
            self.problem = None

    def _report_problem(self, problem: str) -> None:
        """Report a problem, before lines are counted as lost because of it."""
        if self.problem is None:
            self._lost_before = self.stats.lost
            self._warnings.warn(
                "The audit log cannot be written: {problem}; traffic continues", problem=problem
            )
        self.problem = problem
