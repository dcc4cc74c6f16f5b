"""The output of a container, in files of limited size, and its readers: ``kubectl logs``.

The format is that of the container runtimes, kubernetes/design-proposals-archive
node/kubelet-cri-logging.md: lines ``TIME STREAM TAG TEXT``, where the tag is F for a complete line
and P for a piece of one. Here the time always has nine digits, so the prefix of a line has a fixed
length.

As there, a line is written when it is complete, when it is long or when the process has ended:
programs write a line in pieces, and readers of the last lines want whole ones.
"""

from __future__ import annotations

import datetime
import mmap
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from yurtlab.api.options import Query, first, flag, int64
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import IExchange

MAX_BYTES = 10 * 1024 * 1024
"""The size from which on a file is rotated: ``containerLogMaxSize`` of the kubelet."""

MAX_PIECE_BYTES = 16 * 1024
"""The buffer for an incomplete line: ``bufSize`` of containerd's internal/cri/io/logger.go."""

_FILES = 2

TIME = slice(0, 30)
"""The position of the time in a line."""

TAG = slice(38, 39)
"""The position of the tag."""

TEXT = slice(40, None)
"""The position of the text."""

FULL = b"F"
"""The tag of a complete line."""


def stamp(nanoseconds: int) -> bytes:
    """Format a time since 1970 as ``RFC3339NanoFixed`` of the kubelet, in UTC."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return b"%s.%09dZ" % (moment.strftime("%Y-%m-%dT%H:%M:%S").encode(), rest)


@dataclass(frozen=True, slots=True)
class Segment:
    """One of the files, and its number in their order."""

    number: int
    path: Path


class ContainerLog:
    """The log of one run of a container; ``path`` is its newest file.

    ``now()`` returns nanoseconds since 1970.
    """

    _log = Logger()

    def __init__(
        self, path: Path, max_bytes: int = MAX_BYTES, now: Callable[[], int] = time.time_ns
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._now = now
        self._readers: list[Callable[[], object]] = []
        self._unfinished: dict[str, bytes] = {}
        self._size = 0
        self._broken = False
        self.ended = False
        self.removed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb", buffering=0)
        self.segments = [Segment(0, path)]
        """The existing files, oldest first."""

    def write(self, stream: str, data: bytes) -> None:
        """Append output of the process on ``stream``, "stdout" or "stderr"."""
        if self.ended:
            return
        lines, newline, rest = (self._unfinished.pop(stream, b"") + data).rpartition(b"\n")
        begin = self._begin(stream)
        written = b""
        if newline:
            full = begin + b"F "
            written = full + lines.replace(b"\n", b"\n" + full) + b"\n"
        if len(rest) >= MAX_PIECE_BYTES:
            written += begin + b"P " + rest + b"\n"
        elif rest:
            self._unfinished[stream] = rest
        if written:
            self._append(written)
            self._notify()

    def close(self) -> None:
        """Mark the log as complete."""
        if not self.ended:
            for stream, rest in self._unfinished.items():
                self._append(self._begin(stream) + b"P " + rest + b"\n")
            self.ended = True
            self._file.close()
            self._notify()

    def remove(self) -> None:
        """Delete the files; open readers can read to the end."""
        self.close()
        self.removed = True
        for segment in self.segments:
            segment.path.unlink(missing_ok=True)

    def on_change(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` after each addition and at the end; return a function to stop it."""
        self._readers.append(callback)

        def stop() -> None:
            if callback in self._readers:
                self._readers.remove(callback)

        return stop

    def _begin(self, stream: str) -> bytes:
        return b"%s %s " % (stamp(self._now()), stream.encode())

    def _append(self, data: bytes) -> None:
        if self._broken:
            return
        try:
            if self._size >= self._max_bytes:
                self._rotate()
            self._file.write(data)
        except OSError as error:
            # A full disk must neither stop the process nor fill the node's own log.
            self._broken = True
            self._log.error(
                "{path}: {error}: this log goes no further", path=self._path, error=error.strerror
            )
        self._size += len(data)

    def _rotate(self) -> None:
        self._file.close()
        newest = self.segments[-1]
        aside = Segment(newest.number, self._path.with_name(f"{self._path.name}.{newest.number}"))
        os.rename(newest.path, aside.path)
        self.segments[-1] = aside
        self._file = self._path.open("wb", buffering=0)
        self._size = 0
        self.segments.append(Segment(newest.number + 1, self._path))
        while len(self.segments) > _FILES:
            self.segments.pop(0).path.unlink(missing_ok=True)

    def _notify(self) -> None:
        for reader in tuple(self._readers):
            reader()


_BLOCK_BYTES = 64 * 1024

# RFC 3339 as parsed by Go: any number of digits after the second, and a zone.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """``PodLogOptions`` of k8s.io/api core/v1: the requested part of a log.

    ``since`` is a time in the form of the log; earlier lines are skipped.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: bytes | None = None

    @classmethod
    def from_query(cls, query: Query, now: float) -> LogOptions:
        """Parse the parameters of the request; ``now`` is in seconds since 1970.

        Raises :class:`RequestFailed` if they are invalid.
        """
        seconds = _number(query, "sinceSeconds", 1)
        moment = first(query, "sinceTime")
        if seconds is not None and moment:
            raise RequestFailed(400, "at most one of sinceTime or sinceSeconds may be specified")
        since = None
        if seconds is not None:
            since = stamp(max(0, int((now - seconds) * 1_000_000_000)))
        elif moment:
            since = _moment(moment)
        return cls(
            follow=flag(query, "follow"),
            previous=flag(query, "previous"),
            timestamps=flag(query, "timestamps"),
            tail_lines=_number(query, "tailLines", 0),
            limit_bytes=_number(query, "limitBytes", 1),
            since=since,
        )


class LogCursor:
    """A reader's position in a log, which continues from file to file."""

    def __init__(self, log: ContainerLog) -> None:
        self._log = log
        self._file: BinaryIO | None = None
        self._number = -1
        self._unfinished = b""

    def seek_to_tail(self, lines: int) -> None:
        """Seek to the beginning of the last ``lines`` lines; called before anything is read."""
        for segment in reversed(self._log.segments):
            file = self._open(segment.number)
            offset, lines = _tail(file, lines)
            file.seek(offset)
            if lines == 0:
                return

    def read(self) -> list[bytes]:
        """Return the next lines of the file, without their ends; empty if there are none yet."""
        while True:
            if self._file is not None:
                block = self._file.read(_BLOCK_BYTES)
                if block:
                    *lines, self._unfinished = (self._unfinished + block).split(b"\n")
                    if lines:
                        return lines
                    continue
            if not self._open_next():
                return []

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_next(self) -> bool:
        """Open the file after one that was read to its end, if there is one."""
        later = [one.number for one in self._log.segments if one.number > self._number]
        if not later or self._log.removed:
            return False
        self._open(later[0])
        return True

    def _open(self, number: int) -> BinaryIO:
        self.close()
        path = next(one.path for one in self._log.segments if one.number == number)
        # Unbuffered, so that later additions are seen.
        self._file = file = path.open("rb", buffering=0)
        self._number = number
        self._unfinished = b""
        return file


@implementer(IPushProducer)
class LogStream:
    """Sends a log as the body of a response, and continues while it is followed.

    It ends when the process has ended and all is sent, or when the client disconnects.
    """

    def __init__(self, log: ContainerLog, options: LogOptions, exchange: IExchange) -> None:
        self._log = log
        self._options = options
        self._exchange = exchange
        self._cursor = LogCursor(log)
        self._left = options.limit_bytes
        self._since = options.since
        self._line_begins = True
        self._paused = False
        self._sending = False
        self._over = False
        self._unsubscribe = log.on_change(self._send)

    def start(self) -> None:
        """Start sending."""
        if self._options.tail_lines is not None:
            self._cursor.seek_to_tail(self._options.tail_lines)
        self._exchange.on_end(lambda _: self._stop())
        self._exchange.send_head(200, [(b"Content-Type", b"text/plain")])
        self._exchange.registerProducer(self, True)
        self._send()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        self._send()

    def stopProducing(self) -> None:
        self._stop()

    def _send(self) -> None:
        """Send available lines, as far as the client keeps up."""
        if self._sending:
            return
        self._sending = True
        try:
            while not (self._paused or self._over):
                lines = self._cursor.read()
                if lines:
                    self._write(self._as_text(lines))
                elif self._log.ended or not self._options.follow:
                    self._finish()
                else:
                    return
        finally:
            self._sending = False

    def _as_text(self, lines: list[bytes]) -> bytes:
        pieces: list[bytes] = []
        timestamps = self._options.timestamps
        for line in lines:
            if self._since is not None:
                if line[TIME] < self._since:
                    continue
                self._since = None
            if timestamps and self._line_begins:
                pieces.append(line[TIME] + b" ")
            pieces.append(line[TEXT])
            self._line_begins = line[TAG] == FULL
            if self._line_begins:
                pieces.append(b"\n")
        return b"".join(pieces)

    def _write(self, text: bytes) -> None:
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        if text:
            self._exchange.write(text)
        if self._left == 0:
            self._finish()

    def _finish(self) -> None:
        if not self._over:
            self._stop()
            self._exchange.unregisterProducer()
            self._exchange.finish()

    def _stop(self) -> None:
        self._over = True
        self._unsubscribe()
        self._cursor.close()


def _tail(file: BinaryIO, lines: int) -> tuple[int, int]:
    """Return where the last ``lines`` lines of ``file`` begin, and how many of them it lacks."""
    size = file.seek(0, 2)
    if lines == 0 or size == 0:
        return size, lines
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = size
        while end > 0:
            begin = content.rfind(b"\n", 0, end - 1) + 1
            # A line of the file with tag P belongs to the line after it.
            if content[begin + TAG.start : begin + TAG.stop] == FULL or end == size:
                if lines == 0:
                    return end, 0
                lines -= 1
            end = begin
        return 0, lines


def _number(query: Query, name: str, least: int) -> int | None:
    text = first(query, name)
    if not text:
        return None
    try:
        number = int64(text)
    except ValueError as error:
        raise RequestFailed(400, f"{name}: {error}") from None
    if number < least:
        raise RequestFailed(400, f"{name} must be greater than or equal to {least}")
    return number


def _moment(text: str) -> bytes:
    match = _TIME.fullmatch(text)
    if match is None:
        raise RequestFailed(400, f"sinceTime: {text!r} is not a time as 2006-01-02T15:04:05Z")
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.datetime.fromisoformat(f"{day}T{clock}{zone.replace('Z', '+00:00')}")
        nanoseconds = int(moment.timestamp()) * 1_000_000_000
        return stamp(max(0, nanoseconds + int((fraction or "").ljust(9, "0"))))
    except (ValueError, OverflowError):
        raise RequestFailed(400, f"sinceTime: {text!r} is not a time that exists") from None
