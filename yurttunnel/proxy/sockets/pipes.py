"""Pipes through which bytes go from one socket to another within the kernel (splice(2))."""

from __future__ import annotations

import contextlib
import fcntl
import os

PIPE_BYTES = 1024 * 1024
"""What a pipe is asked to hold: the most that the kernel allows without privileges
(``fs.pipe-max-size``). Less takes more processor time for a byte; see ``benchmarks/proxy``."""

MOST_PIPES = 256
"""Of which each has two descriptors."""

MOST_IDLE = 16
"""Pipes that are kept for the next use; making one is four system calls."""


class Pipe:
    """A pipe that never blocks; ``held`` are the bytes in it."""

    __slots__ = ("entrance", "exit", "held")

    def __init__(self) -> None:
        self.exit, self.entrance = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.held = 0
        # Over what its user may have (fs.pipe-user-pages-soft) it stays as small as it came.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.entrance, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close(self) -> None:
        """Close both ends, dropping what it holds."""
        os.close(self.entrance)
        os.close(self.exit)


class PipePool:
    """Pipes for whoever has bytes to move, and for as long as those are in the pipe."""

    def __init__(self, most: int = MOST_PIPES, most_idle: int = MOST_IDLE) -> None:
        self._most = most
        self._most_idle = most_idle
        self._idle: list[Pipe] = []
        self._lent = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe; ``None`` where there are too many, or no descriptors left."""
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
        """Take a pipe back; one that still holds something is closed."""
        self._lent -= 1
        if pipe.held or len(self._idle) >= self._most_idle:
            pipe.close()
        else:
            self._idle.append(pipe)

    def close(self) -> None:
        """Close those that nobody has."""
        while self._idle:
            self._idle.pop().close()
