"""Pipes that move bytes between sockets within the kernel (splice(2))."""

from __future__ import annotations

import contextlib
import fcntl
import os

PIPE_BYTES = 1024 * 1024
"""The requested size of a pipe: the maximum without privileges (``fs.pipe-max-size``). Smaller
pipes take more processor time for a byte; see ``benchmarks/proxy``."""

MOST_PIPES = 256
"""Each has two descriptors."""

MOST_IDLE = 16
"""The maximum number of pipes kept for reuse; making one takes four system calls."""


class Pipe:
    """A non-blocking pipe; ``held`` is the number of bytes in it."""

    __slots__ = ("entrance", "exit", "held")

    def __init__(self) -> None:
        self.exit, self.entrance = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.held = 0
        # Over the user's limit (fs.pipe-user-pages-soft) it keeps its initial size.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.entrance, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close(self) -> None:
        """Close both ends, and drop the data in it."""
        os.close(self.entrance)
        os.close(self.exit)


class PipePool:
    """Lends pipes to connections while they have data in transit."""

    def __init__(self, most: int = MOST_PIPES, most_idle: int = MOST_IDLE) -> None:
        self._most = most
        self._most_idle = most_idle
        self._idle: list[Pipe] = []
        self._lent = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe; ``None`` if the limit is reached, or no descriptors are left."""
        if self._idle:
            pipe = self._idle.pop()
        elif self._lent >= self._most:
            return None
        else:
            try:
                pipe = Pipe()
            except OSError:
                return None
        self._lent += 1
        return pipe

    def give_back(self, pipe: Pipe) -> None:
        """Take back a pipe; close it if it still has data."""
        self._lent -= 1
        if pipe.held or len(self._idle) >= self._most_idle:
            pipe.close()
        else:
            self._idle.append(pipe)

    def close(self) -> None:
        """Close the idle pipes."""
        while self._idle:
            self._idle.pop().close()
