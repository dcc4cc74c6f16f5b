"""The file of the log, whose reader may stop: the process does not stop with it.

A pipe that nobody reads any more, as when what collects logs hangs or a terminal is held by Ctrl-S,
takes 64 KiB, and then a write never ends. So a line is written at once where the kernel takes it at
once, which is nearly always. Else it waits, and a thread writes; what there is no room for is lost.
"""

from __future__ import annotations

import os
import select
import stat
import threading
import time

MAX_WAITING = 1024 * 1024
"""Bytes of lines that may wait, beside those that are being written."""

CLOSE_TIMEOUT = 1.0
"""Seconds in which the lines that wait have to be written when the process stops."""

_AT_ONCE = select.PIPE_BUF
"""Bytes that can be written without waiting to a pipe that poll(2) calls writable (pipe(7))."""

_RETRY = 0.05
"""Seconds until the next try where poll(2) calls writable what takes nothing."""


def _open_again(descriptor: int) -> int:
    """Open a pipe or a terminal once more, not blocking; else give ``descriptor`` itself.

    A terminal blocks where it has less room than the line is long, though poll(2) calls it
    writable. ``descriptor`` stays blocking: it is shared with other processes.
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
    """Writes to ``descriptor``, which stays open; may be used by any thread.

    Nothing but the kernel's buffer is between the caller and the file as long as that has room.
    """

    def __init__(self, descriptor: int) -> None:
        self.lost = 0
        """Lines that could not be written, since the process started."""
        self.problem = ""
        """Why lines were lost last."""
        self._given = descriptor
        self._use(_open_again(descriptor))
        # Whoever has it may come back: an object that is freed meanwhile may have something to log.
        self._lock = threading.RLock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        # What was written last is no end of a line; and nobody writes the rest of that line.
        self._within_line = self._cut = False
        self._thread: threading.Thread | None = None

    @property
    def keeps_up(self) -> bool:
        """Nothing waits."""
        return self._thread is None

    def write(self, line: bytes) -> None:
        """Write ``line``, with its end, now or as soon as that can be."""
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
        """Give what waits a last, short time; what comes later goes to the given descriptor."""
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_TIMEOUT)
        with self._lock:
            # A thread that still writes needs it.
            if self._thread is None and self._descriptor != self._given:
                os.close(self._descriptor)
                self._use(self._given)

    def _use(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)

    def _write_at_once(self, data: bytes) -> bytes:
        """Write as much as does not wait; return the rest."""
        data = self._on_a_line_of_its_own(data)
        try:
            while data and self._writable.poll(0):
                data = self._write_some(data)
        except BlockingIOError:
            # A terminal without room for the end of a line, or another process was quicker.
            return data
        except OSError as error:
            self._lose(1, os.strerror(error.errno or 0))
            self._cut = self._within_line
            return b""
        return data

    def _write_some(self, data: bytes) -> bytes:
        """Write what is taken of ``data``; return the rest."""
        written = os.write(self._descriptor, data[:_AT_ONCE])
        self._within_line = not data.startswith(b"\n", written - 1)
        return data[written:]

    def _on_a_line_of_its_own(self, line: bytes) -> bytes:
        """Return ``line``, behind an end for the one before it if a full disk has cut that off."""
        cut, self._cut = self._cut, False
        return b"\n" + line if cut else line

    def _start_thread(self) -> None:
        """Have a thread write what waits."""
        thread = threading.Thread(target=self._write_waiting, name="log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._lose(len(self._take()), "there can be no more threads")
            self._cut = self._within_line
        else:
            self._thread = thread

    def _write_waiting(self) -> None:
        """Write until nothing waits any more; in the thread."""
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
        """Write all of ``data``, whenever that can be."""
        data = self._on_a_line_of_its_own(data)
        while data:
            self._writable.poll()
            try:
                data = self._write_some(data)
            except BlockingIOError:
                # As above: poll(2) may go on calling it writable, so this thread has to sleep.
                time.sleep(_RETRY)

    def _lose(self, lines: int, problem: str) -> None:
        self.lost += lines
        self.problem = problem
