"""The kernel's conntrack table, and this machine's addresses."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from yurttunnel.steering.netlink.messages import (
    FAMILIES,
    NESTED,
    attribute,
    attributes,
    netfilter_attributes,
    netfilter_request,
    number,
    raw_request,
)
from yurttunnel.steering.netlink.netlink_socket import (
    CHANGE,
    DUMP,
    GET,
    NetlinkError,
    NetlinkSocket,
)

_SUBSYSTEM, _GET, _DELETE = 1, 1, 2
"""``NFNL_SUBSYS_CTNETLINK`` and ``IPCTNL_MSG_CT_*`` from linux/netfilter/nfnetlink.h and
nfnetlink_conntrack.h."""

# CTA_* from linux/netfilter/nfnetlink_conntrack.h: of a connection, a tuple, its parts.
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _STATES, _MARK, _ZONE = 1, 2, 3, 4, 8, 18
_MARK_MASK, _FILTER, _STATUS_MASK = 21, 25, 26
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_SOURCES, _DESTINATIONS = {4: 1, 6: 3}, {4: 2, 6: 4}
_PROTO_NUM, _PROTO_SRC_PORT, _PROTO_DST_PORT = 1, 2, 3
_FILTER_ORIG_FLAGS = 1
_FILTER_PROTO_NUM, _FILTER_DST_PORT = 1 << 3, 1 << 5
"""``CTA_FILTER_F_*`` from net/netfilter/nf_conntrack_netlink.c: what has to be the same."""

_TCP = socket.IPPROTO_TCP
_TCP_STATES, _TCP_STATE = 1, 1
_SYN_SENT, _CLOSED = (1,), (7, 8)
"""``TCP_CONNTRACK_SYN_SENT``; ``_TIME_WAIT`` and ``_CLOSE`` from
linux/netfilter/nf_conntrack_tcp.h."""
_RESET = attribute(_TCP_STATE, bytes([8]))
"""The second of the latter, as entries contain it."""

_SEEN_REPLY, _TRANSLATED = 1 << 1, 1 << 5
"""``IPS_SEEN_REPLY`` and ``IPS_DST_NAT`` from linux/netfilter/nf_conntrack_common.h."""

# From linux/if_addr.h and linux/rtnetlink.h.
_GET_ADDRESS = 22
_ADDRESS = struct.Struct("=2xBBI")
"""Flags, scope and link of ``struct ifaddrmsg``."""
_TENTATIVE, _OPTIMISTIC = 0x40, 0x04
_ADDRESS_HEADER_SIZE = _ADDRESS.size
_SCOPE_UNIVERSE = 0
_IFA_ADDRESS, _IFA_LOCAL = 1, 2

_PORT = struct.Struct("!H")
_NUMBER = struct.Struct("!I")

_MAX_FILTERED = 8
"""The maximum number of ports for each of which the kernel searches its table, and of addresses for
each of which each entry is searched: this takes less time than parsing the whole table here."""


@dataclass(frozen=True, slots=True)
class ConntrackEntry:
    """A TCP or UDP connection in the table; addresses are packed.

    Its client sends from ``source`` and ``source_port`` to ``destination`` and ``port``; replies,
    if any, come from ``reply_source`` and ``reply_port``. ``is_translated`` means that it is
    redirected to another destination, ``is_syn_sent`` that only the first packet of TCP has been
    seen, and ``is_closed`` that the entry exists only for late packets. ``identity`` has the
    attributes that identify it in the kernel: its tuple, and its zone.
    """

    protocol: int
    source: bytes
    source_port: int
    destination: bytes
    port: int
    reply_source: bytes
    reply_port: int
    is_answered: bool
    is_translated: bool
    is_syn_sent: bool
    is_closed: bool
    identity: bytes


class ConntrackTuple(NamedTuple):
    """One direction of a connection; either of both identifies it in the kernel.

    ``protocol`` is ``IPPROTO_TCP`` or ``IPPROTO_UDP``; addresses are packed.
    """

    protocol: int
    source: bytes
    source_port: int
    destination: bytes
    port: int


_Wanted = Callable[[int, int], bool]
"""Returns, by protocol and port of a connection, whether to parse it further."""


def _all(protocol: int, port: int) -> bool:
    return True


class ConntrackTable:
    """The tracked connections of the network namespace.

    ``netlink`` has the protocol ``NETLINK_NETFILTER``. Methods raise
    :class:`yurttunnel.steering.netlink.netlink_socket.NetlinkError`.
    """

    def __init__(self, netlink: NetlinkSocket) -> None:
        self._netlink = netlink

    def to_ports(
        self,
        version: int,
        protocol: int,
        ports: Collection[int],
        destinations: Collection[bytes] = (),
    ) -> Iterator[ConntrackEntry]:
        """Yield the connections whose original destination port is in ``ports``, whatever answers
        them.

        ``protocol`` is ``IPPROTO_TCP`` or ``IPPROTO_UDP``. For a few ports the kernel filters them,
        since Linux 5.8; otherwise it returns all of the protocol, and they are filtered here. If
        only connections to ``destinations``, packed addresses, are wanted, most others are left
        out.
        """
        if len(destinations) > _MAX_FILTERED:
            destinations = ()
        if len(ports) > _MAX_FILTERED:
            yield from self._to_ports(
                version, protocol, ports, b"", _FILTER_PROTO_NUM, destinations
            )
            return
        for port in sorted(ports):
            more = attribute(_PROTO_DST_PORT, _PORT.pack(port))
            flags = _FILTER_PROTO_NUM | _FILTER_DST_PORT
            yield from self._to_ports(version, protocol, {port}, more, flags, destinations)

    def _to_ports(
        self,
        version: int,
        protocol: int,
        ports: Collection[int],
        more: bytes,
        flags: int,
        destinations: Collection[bytes],
    ) -> Iterator[ConntrackEntry]:
        """Yield the connections; the kernel compares the fields of ``flags``."""
        fields = attribute(_PROTO_NUM, bytes([protocol])) + more
        content = attribute(_TUPLE_ORIG | NESTED, attribute(_TUPLE_PROTO | NESTED, fields))
        filtered = attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", flags))
        content += attribute(_FILTER | NESTED, filtered)
        query = _message(version, _GET, DUMP, content)
        return self._dumped(
            query, version, lambda its, port: its == protocol and port in ports, destinations
        )

    def syn_sent(self, version: int, ports: Collection[int]) -> Iterator[ConntrackEntry]:
        """Yield the TCP connections to one of ``ports`` of which only the first packet has been
        seen.

        The kernel filters unanswered ones; an old kernel returns all.
        """
        for entry in self._with_status(
            version, 0, _SEEN_REPLY, wanted=lambda its, port: its == _TCP and port in ports
        ):
            if entry.is_syn_sent:
                yield entry

    def reset(self, version: int, ports: Collection[int]) -> Iterator[ConntrackEntry]:
        """Yield the TCP connections to one of ``ports`` that were redirected, and ended by a reset.

        The kernel assigns the next connection from the same port to such an entry, but not to one
        of a connection that was closed, of which there are many (``TIME_WAIT``).
        """
        for entry in self._with_status(
            *(version, _TRANSLATED, _TRANSLATED),
            wanted=lambda its, port: its == _TCP and port in ports,
            parts=(_RESET,),
        ):
            if entry.is_closed and entry.is_translated:
                yield entry

    def unanswered(self, version: int, mark: int) -> Iterator[ConntrackEntry]:
        """Yield the unanswered connections whose mark has all bits of ``mark``.

        The kernel filters them; an old kernel ignores the second condition, so they are filtered
        here, too. (``CTA_FILTER`` could select by the answering end, but for an IPv6 address Linux
        6.18 selects all others.)
        """
        bits = number(mark)
        content = attribute(_MARK, bits) + attribute(_MARK_MASK, bits)
        for entry in self._with_status(version, 0, _SEEN_REPLY, content):
            if not entry.is_answered:
                yield entry

    def translated(self, version: int) -> Iterator[ConntrackEntry]:
        """Yield the connections that are redirected to another destination.

        An old kernel yields all: see :attr:`ConntrackEntry.is_translated`.
        """
        return self._with_status(version, _TRANSLATED, _TRANSLATED)

    def _with_status(
        self,
        version: int,
        status: int,
        mask: int,
        more: bytes = b"",
        wanted: _Wanted = _all,
        parts: Collection[bytes] = (),
    ) -> Iterator[ConntrackEntry]:
        content = attribute(_STATUS, number(status))
        content += attribute(_STATUS_MASK, number(mask))
        query = _message(version, _GET, DUMP, more + content)
        return self._dumped(query, version, wanted, parts)

    def find_by_original(self, version: int, direction: ConntrackTuple) -> ConntrackEntry | None:
        """Return the connection with this original direction, or ``None``.

        The kernel answers from memory: this may be called in the reactor's thread.
        """
        return self._find(version, _TUPLE_ORIG, direction)

    def find_by_reply(self, version: int, direction: ConntrackTuple) -> ConntrackEntry | None:
        """Return the connection with this reply direction; see :meth:`find_by_original`."""
        return self._find(version, _TUPLE_REPLY, direction)

    def _find(
        self, version: int, tuple_attribute: int, direction: ConntrackTuple
    ) -> ConntrackEntry | None:
        addresses = attribute(_SOURCES[version], direction.source)
        addresses += attribute(_DESTINATIONS[version], direction.destination)
        ports = attribute(_PROTO_NUM, bytes([direction.protocol]))
        ports += attribute(_PROTO_SRC_PORT, _PORT.pack(direction.source_port))
        ports += attribute(_PROTO_DST_PORT, _PORT.pack(direction.port))
        parts = attribute(_TUPLE_IP | NESTED, addresses) + attribute(_TUPLE_PROTO | NESTED, ports)
        content = attribute(tuple_attribute | NESTED, parts)
        try:
            body = self._netlink.get(_message(version, _GET, GET, content))
        except NetlinkError as error:
            if error.code == errno.ENOENT:
                return None
            raise
        return _entry(body, version, _all)

    def _dumped(
        self, query: bytes, version: int, wanted: _Wanted, parts: Collection[bytes] = ()
    ) -> Iterator[ConntrackEntry]:
        """Yield the connections; with ``parts`` only those that have one of them anywhere."""
        for body in self._netlink.dump(query):
            # Parsing an entry takes thirty times as long.
            if parts and not any(each in body for each in parts):
                continue
            entry = _entry(body, version, wanted)
            if entry is not None:
                yield entry

    def delete(self, version: int, entries: Collection[ConntrackEntry]) -> int:
        """Delete entries; return how many of them still existed."""
        codes = self._netlink.change_all(
            _message(version, _DELETE, CHANGE, entry.identity) for entry in entries
        )
        for code in codes:
            if code not in (0, errno.ENOENT):
                raise NetlinkError(code)
        return codes.count(0)


def own_addresses(
    netlink: NetlinkSocket, version: int, exclude_tentative: bool = False
) -> frozenset[bytes]:
    """Return this machine's addresses, packed; the socket has the protocol ``NETLINK_ROUTE``.

    With ``exclude_tentative``, tentative IPv6 addresses are excluded, which another machine may
    still have, for example each time after the link was down: sockets cannot listen on them.
    """
    found = set()
    for body in _addresses(netlink, version):
        flags, _, _ = _ADDRESS.unpack_from(body)
        if exclude_tentative and flags & (_TENTATIVE | _OPTIMISTIC) == _TENTATIVE:
            continue
        known = dict(attributes(body, _ADDRESS_HEADER_SIZE))
        # On a point-to-point link the other attribute is the address of the other end.
        own = known.get(_IFA_LOCAL) or known.get(_IFA_ADDRESS)
        if own is not None:
            found.add(own)
    return frozenset(found)


def links_with_addresses(netlink: NetlinkSocket, version: int) -> frozenset[int]:
    """Return the indexes of the links that have an address of global scope; see
    :func:`own_addresses`.
    """
    found = (_ADDRESS.unpack_from(body) for body in _addresses(netlink, version))
    return frozenset(link for _, scope, link in found if scope == _SCOPE_UNIVERSE)


def _addresses(netlink: NetlinkSocket, version: int) -> Iterator[bytes]:
    family = FAMILIES[version]
    request = bytes([family]).ljust(_ADDRESS_HEADER_SIZE, b"\0")
    for body in netlink.dump(raw_request(request, _GET_ADDRESS, DUMP)):
        if body[0] == family:
            yield body


def _message(version: int, command: int, flags: int, content: bytes) -> bytes:
    return netfilter_request(_SUBSYSTEM, command, flags, content, FAMILIES[version])


def _entry(body: bytes, version: int, wanted: _Wanted) -> ConntrackEntry | None:
    if body[0] != FAMILIES[version]:
        return None
    known = netfilter_attributes(body)
    original, reply = known.get(_TUPLE_ORIG), known.get(_TUPLE_REPLY)
    if original is None or reply is None:
        return None
    ends, ports = _tuple(original)
    if _PROTO_DST_PORT not in ports:
        return None
    protocol = ports[_PROTO_NUM][0]
    (port,) = _PORT.unpack(ports[_PROTO_DST_PORT])
    if not wanted(protocol, port):
        return None
    reply_ends, reply_ports = _tuple(reply)
    (source_port,) = _PORT.unpack(ports[_PROTO_SRC_PORT])
    (reply_port,) = _PORT.unpack(reply_ports[_PROTO_SRC_PORT])
    identity = attribute(_TUPLE_ORIG | NESTED, original)
    if _ZONE in known:
        identity += attribute(_ZONE, known[_ZONE])
    (status,) = _NUMBER.unpack(known[_STATUS])
    return ConntrackEntry(
        protocol=protocol,
        source=ends[_SOURCES[version]],
        source_port=source_port,
        destination=ends[_DESTINATIONS[version]],
        port=port,
        reply_source=reply_ends[_SOURCES[version]],
        reply_port=reply_port,
        is_answered=bool(status & _SEEN_REPLY),
        is_translated=bool(status & _TRANSLATED),
        is_syn_sent=_STATES in known and _is_in(known[_STATES], _SYN_SENT),
        is_closed=_STATES in known and _is_in(known[_STATES], _CLOSED),
        identity=identity,
    )


def _is_in(states: bytes, some: Collection[int]) -> bool:
    of_tcp = dict(attributes(states)).get(_TCP_STATES)
    return of_tcp is not None and dict(attributes(of_tcp))[_TCP_STATE][0] in some


def _tuple(content: bytes) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return the addresses and the ports of one direction, by attribute kind."""
    parts = dict(attributes(content))
    return dict(attributes(parts[_TUPLE_IP])), dict(attributes(parts[_TUPLE_PROTO]))
