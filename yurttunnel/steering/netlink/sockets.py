"""TCP sockets of this network namespace, whoever has them, or nobody any more (sock_diag(7))."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass

from yurttunnel.steering.marks import MARK, MASK
from yurttunnel.steering.netlink.conversation import (
    CHANGE,
    DUMP,
    GET,
    Conversation,
    KernelRefused,
)
from yurttunnel.steering.netlink.messages import attributes, raw_request

NETLINK_SOCK_DIAG = 4
"""Of ``linux/netlink.h``."""

DELIVERY_SECONDS = 5.0
"""How long the last bytes of connections that have ended are waited for: who takes none of them for
so long has little hope."""

_LOOK_SECONDS = 0.02

_BY_FAMILY, _DESTROY = 20, 21
"""Of ``linux/sock_diag.h``."""

_MARK = 15
"""``INET_DIAG_MARK`` of ``linux/inet_diag.h``; told to those with CAP_NET_ADMIN."""

_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_NO_ADDRESSES = bytes(32)
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER_SIZE = 72
"""Of ``struct inet_diag_msg``; attributes follow it."""

_PORTS_OFFSET = 4
"""Of the ports in that."""

_EVERY_STATE = 0xFFFFFFFF

_UNDELIVERED = 1 << 4 | 1 << 9 | 1 << 11
"""``TCP_FIN_WAIT1``, ``TCP_LAST_ACK`` and ``TCP_CLOSING`` of ``net/tcp_states.h``: the peer has not
acknowledged the end, nor what may be before it."""

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

    There is none for a connection that only passes through this machine, but the kernel then finds
    who listens on the number of its source port: that one is left alone. A kernel that destroys no
    sockets (CONFIG_INET_DIAG_DESTROY) leaves all: then forgetting has to do.
    """
    addresses = ends.source.ljust(16, b"\0") + ends.destination.ljust(16, b"\0")
    desired = _desired(version, _EVERY_STATE, ends.source_port, ends.port, addresses)
    try:
        found = conversation.get(raw_request(desired, _BY_FAMILY, GET))
    except KernelRefused:
        return
    # Who listens has no other end.
    is_its = _PORTS.unpack_from(found, _PORTS_OFFSET) == (ends.source_port, ends.port)
    mark = dict(attributes(found, _ANSWER_SIZE)).get(_MARK, b"")
    if is_its and int.from_bytes(mark, sys.byteorder) & MASK != MARK:
        conversation.change_all([raw_request(desired, _DESTROY, CHANGE)])


def wait_until_delivered(ports: Collection[int], seconds: float = DELIVERY_SECONDS) -> None:
    """Wait until the peers of connections to ``ports`` that were closed here have what was sent.

    A process that has closed them may end long before. A kernel that does not tell
    (CONFIG_INET_DIAG) is not waited for.
    """
    end = time.monotonic() + seconds
    with (
        contextlib.suppress(KernelRefused, OSError),
        Conversation(NETLINK_SOCK_DIAG) as conversation,
    ):
        while _is_undelivered(conversation, ports) and time.monotonic() < end:
            # This runs in a thread of its own, which may wait: the kernel tells nobody of it.
            time.sleep(_LOOK_SECONDS)


def _is_undelivered(conversation: Conversation, ports: Collection[int]) -> bool:
    # Both dumps are read to their ends: a conversation is about one thing at a time.
    found = [
        _PORTS.unpack_from(answer, _PORTS_OFFSET)[0] in ports
        for version in _FAMILIES
        for answer in conversation.dump(
            raw_request(_desired(version, _UNDELIVERED), _BY_FAMILY, DUMP)
        )
    ]
    return any(found)


def _desired(
    version: int, states: int, source: int = 0, port: int = 0, addresses: bytes = _NO_ADDRESSES
) -> bytes:
    """Return ``struct inet_diag_req_v2``."""
    head = _REQUEST.pack(_FAMILIES[version], socket.IPPROTO_TCP, 0, 0, states)
    return head + _PORTS.pack(source, port) + addresses + _NO_INTERFACE_NO_COOKIE
