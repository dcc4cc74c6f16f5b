"""A port that answers nobody, as one behind a firewall that drops packets."""

from __future__ import annotations

import socket

_SYN_SENT = "02"
"""The state of ``/proc/net/tcp`` in which a client waits for the answer to its SYN."""


class BlackHole:
    """A loopback port whose queue of unaccepted connections is full: the kernel drops further SYNs.

    A connection that is accepted from ``socket`` opens it.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.bind((host, port))
        self.socket.listen(0)
        self.socket.setblocking(False)
        self._filling = socket.create_connection(self.socket.getsockname())

    @property
    def port(self) -> int:
        """Its number."""
        return int(self.socket.getsockname()[1])

    @property
    def callers(self) -> int:
        """How many clients in this network namespace wait for an answer."""
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in table][1:]
        to = f"{self.port:04X}"
        return sum(row[2].endswith(f":{to}") and row[3] == _SYN_SENT for row in rows)

    def close(self) -> None:
        """Close it."""
        self._filling.close()
        self.socket.close()
