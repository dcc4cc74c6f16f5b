"""What a container has printed, in files of bounded size.

The format is that of the container runtimes, kubernetes/design-proposals-archive
node/kubelet-cri-logging.md: lines ``TIME STREAM TAG TEXT``, the tag being F for a line that is
complete and P for a piece of one. Here the time always has nine digits, so that what precedes the
text is always as long.

As there, a line is written when it is complete, when it is long or when the process has ended:
programs write a line in pieces, and who asks for the last lines wants whole ones.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from twisted.logger import Logger

MAX_BYTES = 10 * 1024 * 1024
"""From this size on a file is put aside: ``containerLogMaxSize`` of the kubelet."""

MAX_PIECE_BYTES = 16 * 1024
"""How much of a line waits for its end: ``bufSize`` of containerd's internal/cri/io/logger.go."""

_KEPT = 2

TIME = slice(0, 30)
"""Where a line has its time."""

TAG = slice(38, 39)
"""Where it has its tag."""

TEXT = slice(40, None)
"""Where it has its text."""

FULL = b"F"
"""The tag of a complete line."""


def stamp(nanoseconds: int) -> bytes:
    """Write a time since 1970 as ``RFC3339NanoFixed`` of the kubelet, in UTC."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return b"%s.%09dZ" % (moment.strftime("%Y-%m-%dT%H:%M:%S").encode(), rest)


@dataclass(frozen=True, slots=True)
class Segment:
    """One of the files, and its place in the order of all that there have been."""

    number: int
    path: Path


class ContainerLog:
    """The log of one run of a container; ``path`` is its newest file.

    ``now()`` gives nanoseconds since 1970.
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
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb", buffering=0)
        self.segments = [Segment(0, path)]
        """The files that are there, the oldest first."""

    def write(self, stream: str, data: bytes) -> None:
        """Add what the process has written to ``stream``, "stdout" or "stderr"."""
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
            self._tell()

    def close(self) -> None:
        """Report that nothing more comes."""
        if not self.ended:
            for stream, rest in self._unfinished.items():
                self._append(self._begin(stream) + b"P " + rest + b"\n")
            self.ended = True
            self._file.close()
            self._tell()

    def remove(self) -> None:
        """Delete the files; who reads them can go on."""
        self.close()
        for segment in self.segments:
            segment.path.unlink(missing_ok=True)

    def on_change(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have ``callback()`` called after each addition, and at the end; the result ends that."""
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
            # A full disk must not stop the process, nor fill the node's own log.
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
        while len(self.segments) > _KEPT:
            self.segments.pop(0).path.unlink(missing_ok=True)

    def _tell(self) -> None:
        for reader in tuple(self._readers):
            reader()
