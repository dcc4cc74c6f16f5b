"""The sockets of this machine's own programs: ended where their connections go the wrong way.

To forget a connection (conntrack) is not enough. When the next packet comes from the far end, the
kernel takes that for the first one, asks no rule that is ours, and the connection goes on as it
was: so it is with a log that is followed. A socket that is destroyed resets both ends at once.
"""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass

from yurttunnel.steering.marks import MARK, MASK
from yurttunnel.steering.netlink.conversation import CHANGE, GET, Conversation, KernelRefused
from yurttunnel.steering.netlink.messages import attributes, raw_request

NETLINK_SOCK_DIAG = 4
"""Of ``linux/netlink.h``."""

_BY_FAMILY, _DESTROY = 20, 21
"""Of ``linux/sock_diag.h``."""

_MARK = 15
"""``INET_DIAG_MARK`` of ``linux/inet_diag.h``; told to those with CAP_NET_ADMIN."""

_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER_SIZE = 72
"""Of ``struct inet_diag_msg``; attributes follow it."""

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a connection, its beginning first; addresses are as packets have them."""

    source: bytes
    source_port: int
    destination: bytes
    port: int


def destroy(conversation: Conversation, version: int, ends: Ends) -> None:
    """End the socket that a connection was begun with, unless it is marked as the server's own.

    There is none for a connection that only passes through this machine. A kernel that destroys
    no sockets (CONFIG_INET_DIAG_DESTROY) leaves it: then forgetting has to do.
    """
    desired = _REQUEST.pack(_FAMILIES[version], socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    desired += _PORTS.pack(ends.source_port, ends.port)
    desired += ends.source.ljust(16, b"\0") + ends.destination.ljust(16, b"\0")
    desired += _NO_INTERFACE_NO_COOKIE
    try:
        found = conversation.get(raw_request(desired, _BY_FAMILY, GET))
    except KernelRefused:
        return
    mark = dict(attributes(found, _ANSWER_SIZE)).get(_MARK, b"")
    if int.from_bytes(mark, sys.byteorder) & MASK != MARK:
        conversation.change_all([raw_request(desired, _DESTROY, CHANGE)])
