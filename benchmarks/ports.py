"""Free loopback ports."""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import tempfile
from pathlib import Path


class NoPorts(Exception):
    """No free port is left for this process."""


class FreePorts:
    """Free loopback ports, of which no two processes of tests and benchmarks choose the same.

    The ports are below the kernel's ephemeral range, so that no outgoing connection uses one before
    it is listened on. Each process has a block of 60 ports while it holds the lock on the file of
    that block.
    """

    FIRST, BLOCK, BLOCKS = 18000, 60, 200

    def __init__(self) -> None:
        self._next = 0

    @functools.cached_property
    def _base(self) -> int:
        """Lock a block until this process ends; return its first port."""
        for attempt in range(self.BLOCKS):
            block = (os.getpid() + attempt) % self.BLOCKS
            path = Path(tempfile.gettempdir(), f"yurttunnel-test-ports-{block}")
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            except PermissionError:
                # The file belongs to another user.
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                return self.FIRST + block * self.BLOCK
        raise NoPorts("all blocks of ports are in use by other processes")

    def take(self) -> int:
        """Return the next free port of this process's block."""
        for _ in range(self.BLOCK):
            port = self._base + self._next % self.BLOCK
            self._next += 1
            if is_free(port):
                return port
        raise NoPorts(f"ports {self._base} to {self._base + self.BLOCK - 1} are all in use")

    def take_row(self, count: int) -> int:
        """Return the first of ``count`` consecutive free ports."""
        row: list[int] = []
        for _ in range(2 * self.BLOCK):
            port = self.take()
            row = [*row, port] if row and port == row[-1] + 1 else [port]
            if len(row) == count:
                return row[0]
        raise NoPorts(f"there are no {count} free ports in a row")


def is_free(port: int) -> bool:
    """Return whether a loopback port can be bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


free_ports = FreePorts()
