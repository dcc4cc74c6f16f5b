"""TCP sockets that listen, or keep their port while the kernel refuses clients.

A socket that is bound, but does not listen, keeps its port, and clients are reset at once.
"""

from __future__ import annotations

import socket

BACKLOG = 4096
"""The maximum number of connections that wait to be accepted: the kernel's own limit
(``net.core.somaxconn``)."""


def reuse_address(unbound: socket.socket) -> None:
    """Allow a socket to bind to a port with connections of an earlier socket in TIME_WAIT (60 s).

    Those must have had SO_REUSEADDR as well, which most servers set (in Go, all do).
    """
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def listen(bound: socket.socket) -> None:
    """Accept connections in the kernel; raises ``OSError``."""
    reuse_address(bound)
    bound.listen(BACKLOG)


def refuse(listening: socket.socket) -> None:
    """Refuse clients at once, including those that wait to be accepted.

    This makes Linux stop listening (``inet_shutdown`` of net/ipv4/af_inet.c). The socket keeps its
    port if it was bound to that number, rather than to 0 (``SOCK_BINDPORT_LOCK``).
    """
    listening.shutdown(socket.SHUT_RD)
    # With the option, another socket that shares the port could listen now.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
