"""The file of the log, which never blocks the process when its reader stops reading.

When a log collector hangs, or a terminal is paused with Ctrl-S, a pipe accepts 64 KiB and then a
write blocks. So a line is written directly if the kernel accepts it without blocking, which is
nearly always. Otherwise it is queued and written by a thread; lines that exceed the queue are lost.
"""

from __future__ import annotations

import os
import select
import stat
import threading
import time

MAX_WAITING = 1024 * 1024
"""The maximum size of queued lines in bytes, besides those that are being written."""

CLOSE_TIMEOUT = 1.0
"""The time in seconds to write the queued lines when the process stops."""

_AT_ONCE = select.PIPE_BUF
"""The number of bytes that a pipe accepts without blocking when poll(2) reports it writable
(pipe(7))."""

_RETRY = 0.05
"""The delay in seconds before a retry when poll(2) reports writable and nothing is accepted."""


def _open_again(descriptor: int) -> int:
    """Open a pipe or a terminal again as non-blocking; otherwise return ``descriptor`` itself.

    A terminal blocks when its free space is smaller than the line, although poll(2) reports it
    writable. ``descriptor`` itself stays blocking: other processes share it.
    """
    if not (os.isatty(descriptor) or stat.S_ISFIFO(os.fstat(descriptor).st_mode)):
        return descriptor
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        # It belongs to another user, or has no reader.
        return descriptor


class LogFile:
    """Writes to ``descriptor``, which stays open; thread-safe.

    While the file accepts data, nothing is buffered outside the kernel.
    """

    def __init__(self, descriptor: int) -> None:
        self.lost = 0
        """The number of lines lost since the process started."""
        self.problem = ""
        """Why lines were last lost."""
        self._given = descriptor
        self._use(_open_again(descriptor))
        # Reentrant: an object that is freed while the lock is held may log something.
        self._lock = threading.RLock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        # The last write ended within a line, and the rest of that line will not be written.
        self._within_line = self._cut = False
        self._thread: threading.Thread | None = None

    @property
    def has_kept_up(self) -> bool:
        """Return whether nothing is queued."""
        return self._thread is None

    def write(self, line: bytes) -> None:
        """Write ``line``, which includes its line end, now or as soon as possible."""
        with self._lock:
            rest = line if self._thread is not None else self._write_at_once(line)
            if not rest:
                return
            if self._waiting_bytes + len(rest) > MAX_WAITING:
                self._lose(1, "it is not read, or takes lines more slowly than they come")
                self._cut = self._cut or (self._thread is None and self._within_line)
                return
            self._waiting.append(rest)
            self._waiting_bytes += len(rest)
            if self._thread is None:
                self._start_thread()

    def close(self) -> None:
        """Flush the queue within a short time; later lines go to the original descriptor."""
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_TIMEOUT)
        with self._lock:
            # A thread that is still writing needs it.
            if self._thread is None and self._descriptor != self._given:
                os.close(self._descriptor)
                self._use(self._given)

    def _use(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)

    def _write_at_once(self, data: bytes) -> bytes:
        """Write as much as is accepted without blocking; return the rest."""
        data = self._on_a_line_of_its_own(data)
        try:
            while data and self._writable.poll(0):
                data = self._write_some(data)
        except BlockingIOError:
            # A terminal has no room for the rest of a line, or another process wrote first.
            return data
        except OSError as error:
            self._lose(1, os.strerror(error.errno or 0))
            self._cut = self._within_line
            return b""
        return data

    def _write_some(self, data: bytes) -> bytes:
        """Write a part of ``data``; return the rest."""
        written = os.write(self._descriptor, data[:_AT_ONCE])
        self._within_line = not data.startswith(b"\n", written - 1)
        return data[written:]

    def _on_a_line_of_its_own(self, line: bytes) -> bytes:
        """Return ``line``, after a line end if a full disk has truncated the line before it."""
        cut, self._cut = self._cut, False
        return b"\n" + line if cut else line

    def _start_thread(self) -> None:
        """Start the thread that writes the queue."""
        thread = threading.Thread(target=self._write_waiting, name="log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._lose(len(self._take()), "there can be no more threads")
            self._cut = self._within_line
        else:
            self._thread = thread

    def _write_waiting(self) -> None:
        """Write until the queue is empty; runs in the thread."""
        while lines := self._take():
            for number, line in enumerate(lines):
                try:
                    self._write_in_time(line)
                except OSError as error:
                    with self._lock:
                        self._lose(len(lines) - number, os.strerror(error.errno or 0))
                        self._cut = self._within_line
                    break

    def _take(self) -> list[bytes]:
        with self._lock:
            lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
            if not lines:
                self._thread = None
            return lines

    def _write_in_time(self, data: bytes) -> None:
        """Write all of ``data``, however long it takes."""
        data = self._on_a_line_of_its_own(data)
        while data:
            self._writable.poll()
            try:
                data = self._write_some(data)
            except BlockingIOError:
                # As above: poll(2) may keep reporting it writable, so this thread must sleep.
                time.sleep(_RETRY)

    def _lose(self, lines: int, problem: str) -> None:
        self.lost += lines
        self.problem = problem
