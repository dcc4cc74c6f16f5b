"""The kernel's table of connections (conntrack), and this machine's addresses."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_CTNETLINK
from pyroute2.netlink.nfnetlink.nfctsocket import (
    IPCTNL_MSG_CT_DELETE,
    IPCTNL_MSG_CT_GET,
    NFCTAttrTuple,
    nfct_msg,
)
from pyroute2.netlink.rtnl import RTM_GETADDR
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg

from yurttunnel.steering.netlink.conversation import CHANGE, DUMP, Conversation, KernelRefused
from yurttunnel.steering.netlink.messages import NESTED, attribute, attributes, raw_request, request

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}

# CTA_* of linux/netfilter/nfnetlink_conntrack.h: of a connection, a tuple, its parts.
_TUPLE_ORIG, _TUPLE_REPLY, _ZONE = 1, 2, 18
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_SOURCES, _DESTINATIONS = {4: 1, 6: 3}, {4: 2, 6: 4}
_PROTO_NUM, _PROTO_SRC_PORT, _PROTO_DST_PORT = 1, 2, 3

_GENERIC_HEADER_SIZE = 4
"""Of ``struct nfgenmsg``."""

# Of linux/if_addr.h.
_ADDRESS_HEADER_SIZE = 8
_IFA_ADDRESS, _IFA_LOCAL = 1, 2

_PORT = struct.Struct("!H")

_FEW = 8
"""Ports for each of which the kernel is asked to look through its table: it does so in less time
than it takes to read all of that here."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A connection in the table, by TCP or UDP, with addresses packed.

    It goes from ``source`` and ``source_port`` to ``destination`` and ``port``; the answers come
    from ``answering`` and ``answering_port``. ``identity`` are the attributes that
    the kernel knows it by: its tuple, and its zone.
    """

    source: bytes
    source_port: int
    destination: bytes
    port: int
    answering: bytes
    answering_port: int
    identity: bytes


class FlowTable:
    """The connections that are tracked in the network namespace.

    ``conversation`` is of the protocol ``NETLINK_NETFILTER``. Methods raise
    :class:`yurttunnel.steering.netlink.conversation.KernelRefused`.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def to_ports(self, version: int, protocol: int, ports: Collection[int]) -> Iterator[Entry]:
        """Yield the connections that were meant for one of ``ports``, whoever answers them.

        ``protocol`` is ``IPPROTO_TCP`` or ``IPPROTO_UDP``. Of a few ports the kernel chooses them,
        from Linux 5.8 on; else it gives all of the protocol, and they are chosen here.
        """
        if len(ports) > _FEW:
            yield from self._to_ports(version, protocol, ports)
        else:
            for port in sorted(ports):
                yield from self._to_ports(version, protocol, {port}, dport=port)

    def _to_ports(
        self, version: int, protocol: int, ports: Collection[int], **more: int
    ) -> Iterator[Entry]:
        family = _FAMILIES[version]
        desired = NFCTAttrTuple(family=family, proto=protocol, **more)
        desired.attrs()  # which reckons the flags
        message = nfct_msg.create_from(
            tuple_orig=desired,
            cta_filter={"attrs": [["CTA_FILTER_ORIG_FLAGS", desired.flags]]},
        )
        message["nfgen_family"] = family
        asked = request(message, _kind(IPCTNL_MSG_CT_GET), DUMP)
        for body in self._conversation.dump(asked):
            entry = _entry(body, version, protocol, ports)
            if entry is not None:
                yield entry

    def delete(self, version: int, entries: Collection[Entry]) -> int:
        """Forget connections; return how many of them were still there."""
        before = struct.pack("=BBH", _FAMILIES[version], 0, 0)
        kind = _kind(IPCTNL_MSG_CT_DELETE)
        codes = self._conversation.change_all(
            raw_request(before + entry.identity, kind, CHANGE) for entry in entries
        )
        for code in codes:
            if code not in (0, errno.ENOENT):
                raise KernelRefused(code)
        return codes.count(0)


def own_addresses(conversation: Conversation, version: int) -> frozenset[bytes]:
    """Return this machine's addresses, packed; the conversation is of ``NETLINK_ROUTE``."""
    message = ifaddrmsg()
    message["family"] = _FAMILIES[version]
    found = set()
    for body in conversation.dump(request(message, RTM_GETADDR, DUMP)):
        if body[0] != _FAMILIES[version]:
            continue
        known = dict(attributes(body, _ADDRESS_HEADER_SIZE))
        # On a point-to-point link the other attribute is the address of the other end.
        own = known.get(_IFA_LOCAL) or known.get(_IFA_ADDRESS)
        if own is not None:
            found.add(own)
    return frozenset(found)


def _kind(command: int) -> int:
    return int(NFNL_SUBSYS_CTNETLINK << 8 | command)


def _entry(body: bytes, version: int, protocol: int, desired: Collection[int]) -> Entry | None:
    if body[0] != _FAMILIES[version]:
        return None
    known = dict(attributes(body, _GENERIC_HEADER_SIZE))
    original, reply = known.get(_TUPLE_ORIG), known.get(_TUPLE_REPLY)
    if original is None or reply is None:
        return None
    ends, ports = _tuple(original)
    if ports[_PROTO_NUM][0] != protocol:
        return None
    (port,) = _PORT.unpack(ports[_PROTO_DST_PORT])
    if port not in desired:
        return None
    answering_ends, answering_ports = _tuple(reply)
    (source_port,) = _PORT.unpack(ports[_PROTO_SRC_PORT])
    (answering_port,) = _PORT.unpack(answering_ports[_PROTO_SRC_PORT])
    identity = attribute(_TUPLE_ORIG | NESTED, original)
    if _ZONE in known:
        identity += attribute(_ZONE, known[_ZONE])
    return Entry(
        source=ends[_SOURCES[version]],
        source_port=source_port,
        destination=ends[_DESTINATIONS[version]],
        port=port,
        answering=answering_ends[_SOURCES[version]],
        answering_port=answering_port,
        identity=identity,
    )


def _tuple(content: bytes) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return the addresses and the ports of one direction, by the kinds of their attributes."""
    parts = dict(attributes(content))
    return dict(attributes(parts[_TUPLE_IP])), dict(attributes(parts[_TUPLE_PROTO]))
