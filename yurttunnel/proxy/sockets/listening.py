"""TCP sockets that listen, and those that hold their port while the kernel refuses its clients.

A socket that is bound, but does not listen, keeps its port, and who speaks to it is reset at once.
"""

from __future__ import annotations

import socket

BACKLOG = 4096
"""Connections that may wait to be accepted: the kernel's own bound (``net.core.somaxconn``)."""


def share_with_the_past(unbound: socket.socket) -> None:
    """Let a socket have a port at which connections of an earlier one are in TIME_WAIT, for 60 s.

    They have to have had SO_REUSEADDR as well, which servers mostly set (and those of Go always).
    """
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def listen(bound: socket.socket) -> None:
    """Have clients connected; raises ``OSError``."""
    share_with_the_past(bound)
    bound.listen(BACKLOG)


def refuse(listening: socket.socket) -> None:
    """Have clients refused at once, those included that wait to be accepted.

    Linux stops to listen by that (``inet_shutdown`` of net/ipv4/af_inet.c). It keeps the port if
    the socket was bound to that number, rather than to 0 (``SOCK_BINDPORT_LOCK``).
    """
    listening.shutdown(socket.SHUT_RD)
    # Of two sockets that would share a port, the other one could listen now.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
