"""Pipes that move bytes between sockets within the kernel (splice(2))."""

from __future__ import annotations

import contextlib
import fcntl
import os

PIPE_BYTES = 1024 * 1024
"""The requested size of a pipe: the maximum without privileges (``fs.pipe-max-size``). Smaller
pipes take more processor time for a byte; see ``benchmarks/proxy``."""

MAX_PIPES = 256
"""Each has two descriptors."""

MAX_IDLE = 16
"""The maximum number of pipes kept for reuse; making one takes four system calls."""


class Pipe:
    """A non-blocking pipe; ``size`` is the number of bytes in it."""

    __slots__ = ("read_end", "size", "write_end")

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.size = 0
        # Over the user's limit (fs.pipe-user-pages-soft) it keeps its initial size.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close(self) -> None:
        """Close both ends, and drop the data in it."""
        os.close(self.write_end)
        os.close(self.read_end)


class PipePool:
    """Lends pipes to connections while they have data in transit."""

    def __init__(self, max_pipes: int = MAX_PIPES, max_idle: int = MAX_IDLE) -> None:
        self._max_pipes = max_pipes
        self._most_idle = max_idle
        self._idle: list[Pipe] = []
        self._in_use = 0

    def acquire(self) -> Pipe | None:
        """Return an empty pipe; ``None`` if the limit is reached, or no descriptors are left."""
        if self._idle:
            pipe = self._idle.pop()
        elif self._in_use >= self._max_pipes:
            return None
        else:
            try:
                pipe = Pipe()
            except OSError:
                return None
        self._in_use += 1
        return pipe

    def release(self, pipe: Pipe) -> None:
        """Take back a pipe; close it if it still has data."""
        self._in_use -= 1
        if pipe.size or len(self._idle) >= self._most_idle:
            pipe.close()
        else:
            self._idle.append(pipe)

    def close(self) -> None:
        """Close the idle pipes."""
        while self._idle:
            self._idle.pop().close()
