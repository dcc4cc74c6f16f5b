"""How endpoints are connected to: by TCP, or in another way that keeps this interface."""

from __future__ import annotations

import socket
from errno import ECONNREFUSED, EINPROGRESS

from zope.interface import Interface, implementer

from yurttunnel.proxy.sockets.pacing import Pacing
from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.tunnel.sockets import tune_local_socket


class IDialer(Interface):
    """Connects to endpoints. What is told of an attempt are numbers of :mod:`errno`."""

    def dial(endpoint: Endpoint) -> socket.socket:
        """Return a stream socket that does not block, whose connection has begun.

        It is writable, or broken, when :meth:`outcome` is to be asked again. Raises ``OSError``.
        """

    def outcome(dialed: socket.socket, endpoint: Endpoint) -> int | None:
        """Return 0 when it is connected, why that failed, or ``None`` while it goes on."""


@implementer(IDialer)
class TcpDialer:
    """Connects to the address of the endpoint, from this node."""

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing

    def dial(self, endpoint: Endpoint) -> socket.socket:
        """Begin to connect; see :class:`IDialer`."""
        family = socket.AF_INET if endpoint.address.version == 4 else socket.AF_INET6
        dialed = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            tune_local_socket(dialed)
            self._pacing.leave_out(dialed)
            number = dialed.connect_ex((str(endpoint.address), endpoint.port))
            if number not in (0, EINPROGRESS):
                raise OSError(number, f"cannot connect to {endpoint}")
        except OSError:
            dialed.close()
            raise
        return dialed

    def outcome(self, dialed: socket.socket, endpoint: Endpoint) -> int | None:
        """Look how it goes; see :class:`IDialer`."""
        try:
            peer = dialed.getpeername()
        except OSError:
            # Where an ICMP message says that the target cannot be reached, Linux from 6.9 on tells
            # so here, and goes on trying for minutes (RFC 1122 section 4.2.3.9).
            return dialed.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or None
        # TCP's simultaneous open: an unused port of this machine may be connected to itself.
        return ECONNREFUSED if peer == dialed.getsockname() else 0
