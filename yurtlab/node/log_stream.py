"""Gives a container's log to whoever asks: ``kubectl logs`` with all its flags."""

from __future__ import annotations

import datetime
import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from yurtlab.node.log_files import FULL, TAG, TEXT, TIME, ContainerLog, stamp
from yurttunnel.http.interfaces import ExchangeFailed, IExchange

_BLOCK_BYTES = 64 * 1024

# RFC 3339 as Go reads it: any number of digits behind the second, and a zone.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)", re.ASCII
)


class BadLogOptions(Exception):
    """A request for a log that makes no sense; the line says which part of it."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """``PodLogOptions`` of k8s.io/api core/v1: what of a log is wanted.

    ``since`` is a time in the form of the log, before which nothing is given.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: bytes | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, Sequence[str]], now: float) -> LogOptions:
        """Read the parameters of the request. Raises :class:`BadLogOptions`.

        ``now`` is in seconds since 1970.
        """
        seconds = _number(query, "sinceSeconds", 1)
        moment = query.get("sinceTime", [""])[0]
        if seconds is not None and moment:
            raise BadLogOptions("at most one of sinceTime or sinceSeconds may be specified")
        since = None
        if seconds is not None:
            since = stamp(max(0, int((now - seconds) * 1_000_000_000)))
        elif moment:
            since = _moment(moment)
        return cls(
            follow=_flag(query, "follow"),
            previous=_flag(query, "previous"),
            timestamps=_flag(query, "timestamps"),
            tail_lines=_number(query, "tailLines", 0),
            limit_bytes=_number(query, "limitBytes", 1),
            since=since,
        )


class LogCursor:
    """A place in a log, which goes on from file to file."""

    def __init__(self, log: ContainerLog) -> None:
        self._log = log
        self._file: BinaryIO | None = None
        self._number = -1
        self._unfinished = b""

    def go_to_tail(self, lines: int) -> None:
        """Go to where the last ``lines`` lines begin; called before anything is read."""
        for segment in reversed(self._log.segments):
            file = self._open(segment.number)
            offset, lines = _tail(file, lines)
            file.seek(offset)
            if lines == 0:
                return

    def read(self) -> list[bytes]:
        """Return the next lines of the file, without their ends; none when there are none yet."""
        while True:
            if self._file is not None:
                block = self._file.read(_BLOCK_BYTES)
                if block:
                    *lines, self._unfinished = (self._unfinished + block).split(b"\n")
                    if lines:
                        return lines
                    continue
            if not self._go_on():
                return []

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _go_on(self) -> bool:
        """Open the file behind the one that is at its end, if there is one."""
        later = [one.number for one in self._log.segments if one.number > self._number]
        if not later:
            return False
        self._open(later[0])
        return True

    def _open(self, number: int) -> BinaryIO:
        self.close()
        path = next(one.path for one in self._log.segments if one.number == number)
        # Read without a buffer of its own: what is added later must be seen.
        self._file = file = path.open("rb", buffering=0)
        self._number = number
        self._unfinished = b""
        return file


@implementer(IPushProducer)
class LogStream:
    """Sends a log as the body of a response, and goes on while it is followed.

    It ends when the process has ended and all is sent, or when the client leaves.
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
        """Begin."""
        if self._options.tail_lines is not None:
            self._cursor.go_to_tail(self._options.tail_lines)
        self._exchange.on_end(self._ended)
        self._exchange.send_head(200, [(b"Content-Type", b"text/plain")])
        self._exchange.registerProducer(self, True)
        self._send()

    def pauseProducing(self) -> None:
        """Send no more for now."""
        self._paused = True

    def resumeProducing(self) -> None:
        """Send again."""
        self._paused = False
        self._send()

    def stopProducing(self) -> None:
        """Stop."""
        self._stop()

    def _send(self) -> None:
        """Send what there is, as far as the client takes it."""
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

    def _ended(self, error: ExchangeFailed | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self._over = True
        self._unsubscribe()
        self._cursor.close()


def _tail(file: BinaryIO, lines: int) -> tuple[int, int]:
    """Find where the last ``lines`` lines of ``file`` begin, and how many of them it lacks."""
    size = file.seek(0, 2)
    if lines == 0 or size == 0:
        return size, lines
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = size
        while end > 0:
            begin = content.rfind(b"\n", 0, end - 1) + 1
            # A line of the file that is a piece belongs to what follows it.
            if content[begin + TAG.start : begin + TAG.stop] == FULL or end == size:
                if lines == 0:
                    return end, 0
                lines -= 1
            end = begin
        return 0, lines


def _flag(query: Mapping[str, Sequence[str]], name: str) -> bool:
    return query.get(name, [""])[0].lower() in ("1", "true")


def _number(query: Mapping[str, Sequence[str]], name: str, least: int) -> int | None:
    text = query.get(name, [""])[0]
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise BadLogOptions(f"{name}: {text!r} is not a number") from None
    if number < least:
        raise BadLogOptions(f"{name} must be greater than or equal to {least}")
    return number


def _moment(text: str) -> bytes:
    match = _TIME.fullmatch(text)
    if match is None:
        raise BadLogOptions(f"sinceTime: {text!r} is not a time as 2006-01-02T15:04:05Z")
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.datetime.fromisoformat(f"{day}T{clock}{zone.replace('Z', '+00:00')}")
        nanoseconds = int(moment.timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        raise BadLogOptions(f"sinceTime: {text!r} is not a time that exists") from None
    return stamp(max(0, nanoseconds + int((fraction or "").ljust(9, "0"))))
