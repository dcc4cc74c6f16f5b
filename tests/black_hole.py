"""A port that never responds, like one behind a firewall that drops packets."""

from __future__ import annotations

import socket

_SYN_SENT = "02"
"""The state in ``/proc/net/tcp`` of a client that waits for the answer to its SYN."""


class BlackHole:
    """A loopback port with a full queue of unaccepted connections: the kernel drops further SYNs.

    Accepting a connection from ``socket`` opens it again.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.bind((host, port))
        self.socket.listen(0)
        self.socket.setblocking(False)
        self._filling = socket.create_connection(self.socket.getsockname())

    @property
    def port(self) -> int:
        """The port number."""
        return int(self.socket.getsockname()[1])

    @property
    def callers(self) -> int:
        """The number of clients in this network namespace that wait for an answer."""
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in table][1:]
        to = f"{self.port:04X}"
        return sum(row[2].endswith(f":{to}") and row[3] == _SYN_SENT for row in rows)

    def close(self) -> None:
        """Close the port."""
        self._filling.close()
        self.socket.close()
