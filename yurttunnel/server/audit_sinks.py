"""The destinations of the audit log: a file that is rotated by size, or standard output."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from zope.interface import implementer

from yurttunnel.ops.private_files import check_parents
from yurttunnel.server.audit_log import IAuditSink, WriteResult

_MODE = 0o600
_FLAGS = (
    # Nonblocking: opening a FIFO without a reader would block; this way it fails.
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
)
_TIME_FORMAT = "%Y-%m-%dT%H-%M-%S"
_TIMESTAMP = r"[12]\d{3}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}"
_STANDARD_OUTPUT = 1


class AuditSettings(NamedTuple):
    """The destination of the audit log: ``path``, or standard output if it is ``None``.

    The file is rotated before it exceeds ``max_bytes``, unless a single line does; the newest
    ``max_backups`` rotated files are kept, or all of them if it is 0.
    """

    path: Path | None
    max_bytes: int
    max_backups: int


class UnsuitableFile(OSError):
    """The path of the audit log is not a file that may be written."""


def open_sink(settings: AuditSettings) -> IAuditSink:
    """Open the destination of the audit log; raises ``OSError`` with a reason."""
    if settings.path is None:
        return StandardOutput()
    file = AuditFile(settings.path, settings.max_bytes, settings.max_backups)
    file.open()
    return file


@implementer(IAuditSink)
class StandardOutput:
    """Writes each line separately, since the log is written to the same place."""

    def __init__(self, descriptor: int = _STANDARD_OUTPUT) -> None:
        self._descriptor = descriptor

    def append(self, lines: list[bytes]) -> WriteResult:
        for count, line in enumerate(lines):
            _, problem = _write_all(self._descriptor, line)
            if problem:
                return WriteResult(count, f"standard output cannot be written: {problem}")
        return WriteResult(len(lines))

    def close(self) -> None:
        """Do nothing: others write to standard output, too."""


@implementer(IAuditSink)
class AuditFile:
    """A file of mode 0600 at ``path``, whatever others do with the name meanwhile.

    It is recreated if it was removed or renamed, and never written through a symbolic link. Rotated
    files are next to it, such as ``audit-2026-01-31T12-00-00.000.log`` for ``audit.log``, with the
    names that kube-apiserver uses.
    """

    def __init__(
        self, path: Path, max_bytes: int, max_backups: int, now: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_backups = max_backups
        self._now = now
        self._descriptor: int | None = None

    def open(self) -> None:
        """Open or create the file; raises ``OSError``."""
        check_parents(self._path)
        descriptor = os.open(self._path, _FLAGS, _MODE)
        try:
            self._make_private(os.fstat(descriptor), descriptor)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def append(self, lines: list[bytes]) -> WriteResult:
        done, problem = 0, ""
        while done < len(lines):
            try:
                descriptor = self._current()
                end = self._end_of_fitting(descriptor, lines, done)
                if end == done:
                    problem = self._rotate() or problem
                    descriptor = self._current()
                    end = self._end_of_fitting(descriptor, lines, done)
                if end == done:
                    # Renaming has failed, and the file is written further: lines matter more.
                    end = len(lines)
                part = lines[done:end]
                data = b"".join(part)
                written, failed = _write_all(descriptor, data)
            except OSError as error:
                return WriteResult(done, self._reason("cannot be written", error))
            if failed:
                whole = data[:written].count(b"\n")
                self._remove_partial_line(descriptor, written - sum(map(len, part[:whole])))
                return WriteResult(done + whole, f"{self._path} cannot be written: {failed}")
            done = end
        return WriteResult(len(lines), problem)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _end_of_fitting(self, descriptor: int, lines: list[bytes], start: int) -> int:
        """Return the end of the lines from ``start`` that still fit; an empty file takes any."""
        size = os.fstat(descriptor).st_size
        for end in range(start, len(lines)):
            if size and size + len(lines[end]) > self._max_bytes:
                return end
            size += len(lines[end])
        return len(lines)

    def _make_private(self, status: os.stat_result, descriptor: int) -> None:
        """Restrict the file to its owner; raises :class:`UnsuitableFile` if that is impossible."""
        if not stat.S_ISREG(status.st_mode):
            raise UnsuitableFile(0, "it is not a regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise UnsuitableFile(0, "it belongs to another user")
        if status.st_nlink > 1:
            raise UnsuitableFile(0, "it has more than one name (hard links)")
        if stat.S_IMODE(status.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)

    def _current(self) -> int:
        """Return the descriptor of the file at the path, reopened if that is another file."""
        descriptor = self._descriptor
        if descriptor is not None:
            try:
                current = os.stat(self._path, follow_symlinks=False)
            except FileNotFoundError:
                current = None
            if current is not None and os.path.samestat(current, os.fstat(descriptor)):
                return descriptor
            self.close()
        self.open()
        assert self._descriptor is not None
        return self._descriptor

    def _rotate(self) -> str:
        """Rename the file, and remove old backups; return the problem, if any."""
        try:
            backups = self._backups()
            moment = datetime.datetime.fromtimestamp(self._now(), datetime.UTC)
            if backups:
                # Backups from a clock that was ahead would be kept forever in place of newer ones.
                moment = max(moment, backups[-1] + datetime.timedelta(milliseconds=1))
            os.rename(self._path, self._backup(moment))
            for old in backups[: 1 - self._max_backups or None] if self._max_backups else ():
                os.unlink(self._backup(old))
        except OSError as error:
            return self._reason("cannot be rotated", error)
        return ""

    def _backup(self, moment: datetime.datetime) -> Path:
        """Return the name for a file that is rotated at ``moment``."""
        text = moment.strftime(_TIME_FORMAT) + f".{moment.microsecond // 1000:03d}"
        return self._path.with_name(f"{self._path.stem}-{text}{self._path.suffix}")

    def _backups(self) -> list[datetime.datetime]:
        """List the times of the rotated files, the oldest first."""
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        pattern = re.compile(f"{stem}-({_TIMESTAMP}){suffix}", re.ASCII)
        moments = []
        for found in filter(None, map(pattern.fullmatch, os.listdir(self._path.parent))):
            # A name without a valid date is not ours.
            with contextlib.suppress(ValueError):
                moment = datetime.datetime.strptime(found[1], f"{_TIME_FORMAT}.%f")
                moments.append(moment.replace(tzinfo=datetime.UTC))
        return sorted(moments)

    def _remove_partial_line(self, descriptor: int, count: int) -> None:
        """Remove the beginning of a line that could not be written completely."""
        if count:
            # If that fails, too, the next line is corrupted; nothing more can be done.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - count)

    def _reason(self, what: str, error: OSError) -> str:
        return f"{self._path} {what}: {error.strerror}"


def _write_all(descriptor: int, data: bytes) -> tuple[int, str]:
    """Write ``data`` until a write fails; return the number of bytes, and the problem, if any."""
    written = 0
    while written < len(data):
        try:
            written += os.write(descriptor, memoryview(data)[written:])
        except OSError as error:
            return written, error.strerror or str(error)
    return written, ""
