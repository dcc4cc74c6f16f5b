"""Connecting to endpoints by TCP."""

from __future__ import annotations

import socket
from errno import ECONNREFUSED, EINPROGRESS

from yurttunnel.proxy.sockets.pacing import Pacing
from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.tunnel.sockets import tune_local_socket


class TcpDialer:
    """Connects from this node to the addresses of endpoints."""

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing

    def dial(self, endpoint: Endpoint) -> socket.socket:
        """Return a non-blocking stream socket that has started to connect.

        When it becomes writable, or fails, call :meth:`outcome`. Raises ``OSError``.
        """
        family = socket.AF_INET if endpoint.address.version == 4 else socket.AF_INET6
        dialed = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            tune_local_socket(dialed)
            self._pacing.use_reno(dialed)
            number = dialed.connect_ex((str(endpoint.address), endpoint.port))
            if number not in (0, EINPROGRESS):
                raise OSError(number, f"cannot connect to {endpoint}")
        except OSError:
            dialed.close()
            raise
        return dialed

    def outcome(self, dialed: socket.socket) -> int | None:
        """Return 0 if it is connected, the error if it failed, ``None`` while it is connecting."""
        try:
            peer = dialed.getpeername()
        except OSError:
            # After an ICMP message that the destination is unreachable, Linux from 6.9 on reports
            # it here, but retries for minutes (RFC 1122 section 4.2.3.9).
            return dialed.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or None
        # TCP's simultaneous open can connect an unused port of this machine to itself.
        return ECONNREFUSED if peer == dialed.getsockname() else 0
