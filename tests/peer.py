"""The other end of a connection: a socket that only the test uses."""

from __future__ import annotations

import contextlib
import socket
from typing import Self


class Peer:
    """One end of a connection, which does nothing by itself."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.received = bytearray()
        self.ended = False
        self.reset = False

    def read(self) -> Self:
        """Read all available data."""
        with contextlib.suppress(BlockingIOError):
            while not (self.ended or self.reset):
                try:
                    data = self.socket.recv(1 << 20)
                except ConnectionResetError:
                    self.reset = True
                else:
                    self.acquire(data)
                    self.ended = not data
        return self

    def acquire(self, data: bytes) -> None:
        """Store received data."""
        self.received += data

    def reset_connection(self) -> None:
        """Close with a reset."""
        linger = (1).to_bytes(4, "little") + bytes(4)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()
