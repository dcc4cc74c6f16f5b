"""Who is at the other end of a Unix socket, as the kernel says."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""``struct ucred`` of unix(7): process, user, group."""


def peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Ask the kernel who has connected (``SO_PEERCRED``): process, user and group."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(packed)
    return process, user, group


def user_id_behind(connection: socket.socket) -> int:
    """Return the number of the user who has connected to a Unix socket, or listens on it."""
    return peer_credentials(connection)[1]
