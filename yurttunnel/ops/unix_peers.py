"""The identity of the peer of a Unix socket, from the kernel."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""``struct ucred`` of unix(7): process, user, group."""


def peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Return the process, user and group of the peer from the kernel (``SO_PEERCRED``)."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(packed)
    return process, user, group


def user_id_behind(connection: socket.socket) -> int:
    """Return the user ID of the peer of a Unix socket: of who connected, or of who listens."""
    return peer_credentials(connection)[1]
