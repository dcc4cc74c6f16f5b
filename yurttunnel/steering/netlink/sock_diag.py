"""All TCP sockets of this network namespace, also those without a process (sock_diag(7))."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Collection

from yurttunnel.steering.marks import MARK, MASK
from yurttunnel.steering.netlink.conntrack_table import ConntrackEntry, ConntrackTuple
from yurttunnel.steering.netlink.messages import FAMILIES, attributes, raw_request
from yurttunnel.steering.netlink.netlink_socket import (
    CHANGE,
    DUMP,
    GET,
    NetlinkError,
    NetlinkSocket,
)

NETLINK_SOCK_DIAG = 4
"""From ``linux/netlink.h``."""

DELIVERY_SECONDS = 5.0
"""How long to wait until the last data of closed connections is delivered: a peer that accepts none
for this long is unlikely to do so later."""

_POLL_SECONDS = 0.02

_BY_FAMILY, _DESTROY = 20, 21
"""From ``linux/sock_diag.h``."""

_MARK = 15
"""``INET_DIAG_MARK`` from ``linux/inet_diag.h``; only available with CAP_NET_ADMIN."""

_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_NO_ADDRESSES = bytes(32)
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER_SIZE = 72
"""The size of ``struct inet_diag_msg``, which attributes follow."""

_PORTS_OFFSET = 4
"""The offset of the ports in it."""

_ALL_STATES = 0xFFFFFFFF

_UNDELIVERED = 1 << 4 | 1 << 9 | 1 << 11
"""``TCP_FIN_WAIT1``, ``TCP_LAST_ACK`` and ``TCP_CLOSING`` from ``net/tcp_states.h``: the peer has
not acknowledged the FIN, nor any data that may precede it."""


def destroy(netlink: NetlinkSocket, version: int, ends: ConntrackEntry | ConntrackTuple) -> None:
    """Destroy the client socket of a connection, unless it has the server's own mark.

    A connection that is only forwarded has no socket here, but the kernel then returns a listening
    socket with the number of its source port, which is left alone. A kernel that does not support
    it (CONFIG_INET_DIAG_DESTROY) destroys none: then deleting the entry has to suffice.
    """
    addresses = ends.source.ljust(16, b"\0") + ends.destination.ljust(16, b"\0")
    desired = _desired(version, _ALL_STATES, ends.source_port, ends.port, addresses)
    try:
        found = netlink.get(raw_request(desired, _BY_FAMILY, GET))
    except NetlinkError:
        return
    # A listening socket has no other end.
    is_its = _PORTS.unpack_from(found, _PORTS_OFFSET) == (ends.source_port, ends.port)
    mark = dict(attributes(found, _ANSWER_SIZE)).get(_MARK, b"")
    if is_its and int.from_bytes(mark, sys.byteorder) & MASK != MARK:
        netlink.change_all([raw_request(desired, _DESTROY, CHANGE)])


def wait_until_delivered(ports: Collection[int], seconds: float = DELIVERY_SECONDS) -> None:
    """Wait until the peers of closed connections to ``ports`` have acknowledged all data.

    The process that closed them may end long before. If the kernel does not support it
    (CONFIG_INET_DIAG), return at once.
    """
    end = time.monotonic() + seconds
    with contextlib.suppress(NetlinkError, OSError), NetlinkSocket(NETLINK_SOCK_DIAG) as netlink:
        while _is_undelivered(netlink, ports) and time.monotonic() < end:
            # This runs in its own thread, which may block: the kernel has no notification for it.
            time.sleep(_POLL_SECONDS)


def _is_undelivered(netlink: NetlinkSocket, ports: Collection[int]) -> bool:
    # Read both dumps to their ends: a netlink socket handles one request at a time.
    found = [
        _PORTS.unpack_from(answer, _PORTS_OFFSET)[0] in ports
        for version in FAMILIES
        for answer in netlink.dump(raw_request(_desired(version, _UNDELIVERED), _BY_FAMILY, DUMP))
    ]
    return any(found)


def _desired(
    version: int, states: int, source: int = 0, port: int = 0, addresses: bytes = _NO_ADDRESSES
) -> bytes:
    """Return ``struct inet_diag_req_v2``."""
    head = _REQUEST.pack(FAMILIES[version], socket.IPPROTO_TCP, 0, 0, states)
    return head + _PORTS.pack(source, port) + addresses + _NO_INTERFACE_NO_COOKIE
