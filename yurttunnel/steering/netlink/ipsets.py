"""The kernel's sets of addresses (ipset), one request after the other."""

from __future__ import annotations

import errno
import itertools
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

from yurttunnel.steering.netlink.messages import (
    FAMILIES,
    NESTED,
    attribute,
    attributes,
    netfilter_attributes,
    netfilter_request,
    number,
    text,
)
from yurttunnel.steering.netlink.netlink_socket import (
    CHANGE,
    DUMP,
    EXCLUSIVE,
    GET,
    NetlinkError,
    NetlinkSocket,
)

MAX_ADDRESSES = 1 << 20
"""The maximum number of addresses in a set; the default, 65,536, is too few for large clusters."""

_TYPE = "hash:ip"
_LENGTHS = {4: 4, 6: 16}

_PROTOCOL_VERSION = 6
"""The version of the ipset protocol that every kernel since 2.6.39 accepts."""

_FIRST_REVISION = 0
"""The revision of the set type: the first is sufficient, and every kernel supports it."""

_BATCH_SIZE = 1000
"""The number of addresses in one message. An attribute has at most 64 KiB, and the set is locked
while the kernel processes it."""

_SUBSYSTEM = 6
"""``NFNL_SUBSYS_IPSET`` from linux/netfilter/nfnetlink.h."""

# IPSET_CMD_* and IPSET_ERR_* from linux/netfilter/ipset/ip_set.h.
_CREATE, _DESTROY, _SWAP, _LIST, _ADD, _DELETE, _GET_TYPE = 2, 3, 6, 7, 9, 10, 13
ERR_FIND_TYPE, ERR_BUSY, ERR_TYPE_MISMATCH, ERR_REFERENCED = 4098, 4100, 4102, 4108
ERR_TYPE_SPECIFIC = 4352

# IPSET_ATTR_* from the same file: of commands, and within DATA.
_PROTOCOL, _SETNAME, _TYPENAME, _REVISION, _FAMILY, _DATA, _ADT, _LINENO = 1, 2, 3, 4, 5, 7, 8, 9
_OTHER_NAME = _TYPENAME
_IP, _TIMEOUT, _CADT_FLAGS, _BITMASK, _MAXELEM, _NETMASK = 1, 6, 8, 12, 19, 20
_ADDRESSES = {4: 1, 6: 2}

_NETWORK_ORDER = 0x4000
"""``NLA_F_NET_BYTEORDER``."""

# NFNL_SUBSYS_NFT_COMPAT and its attributes, from linux/netfilter/nf_tables_compat.h.
_NFT_COMPAT = 11
_COMPAT_NAME, _COMPAT_REVISION, _COMPAT_KIND = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a set in the kernel, with packed addresses.

    ``fits`` is whether it has the type and size that :meth:`Ipsets.create` sets.
    """

    fits: bool
    addresses: frozenset[bytes]


class Ipsets:
    """The sets of the network namespace; each method raises :class:`NetlinkError`.

    ``netlink`` has the protocol ``NETLINK_NETFILTER``.
    """

    def __init__(self, netlink: NetlinkSocket) -> None:
        self._netlink = netlink

    def has_type(self) -> bool:
        """Return whether the kernel has sets of addresses, of both families."""
        try:
            for family in FAMILIES.values():
                self._netlink.get(_request(_GET_TYPE, GET, _type(family), family))
        except NetlinkError as error:
            if error.code not in (errno.EINVAL, ERR_FIND_TYPE):
                raise
            return False
        return True

    def has_match(self) -> bool:
        """Return whether rules can refer to sets, as far as the kernel can be queried.

        The query uses the compatibility of nftables with iptables. A kernel without it, which has
        legacy iptables only, is assumed to have the match that has always been part of sets.
        """
        content = attribute(_COMPAT_NAME, text("set"))
        content += attribute(_COMPAT_REVISION, number(0)) + attribute(_COMPAT_KIND, number(0))
        try:
            self._netlink.get(netfilter_request(_NFT_COMPAT, 0, GET, content, socket.AF_INET))
        except NetlinkError as error:
            return error.code != errno.ENOENT
        return True

    def read(self, name: str, version: int) -> Content | None:
        """Return the content of a set, ``None`` if it does not exist; ``version`` is expected."""
        query = _request(_LIST, DUMP, _name(name))
        found: set[bytes] = set()
        seen = False
        fits = True
        try:
            for body in self._netlink.dump(query):
                seen = True
                fits = _read_part(body, version, found) and fits
        except NetlinkError as error:
            if error.code != errno.ENOENT:
                raise
        return Content(fits, frozenset(found)) if seen else None

    def create(self, name: str, version: int) -> None:
        """Create an empty set."""
        family = FAMILIES[version]
        size = attribute(_MAXELEM | _NETWORK_ORDER, number(MAX_ADDRESSES))
        content = _name(name) + _type(family) + attribute(_REVISION, bytes([_FIRST_REVISION]))
        content += attribute(_DATA | NESTED, size)
        self._netlink.change(_request(_CREATE, CHANGE | EXCLUSIVE, content, family))

    def add(self, name: str, version: int, addresses: Collection[bytes]) -> None:
        """Add addresses to a set; existing ones are ignored."""
        self._change(_ADD, name, version, addresses)

    def delete(self, name: str, version: int, addresses: Collection[bytes]) -> None:
        """Delete addresses from a set; missing ones are ignored."""
        self._change(_DELETE, name, version, addresses)

    def swap(self, name: str, other: str) -> None:
        """Exchange the names of two sets, also in the rules that refer to them."""
        content = _name(name) + attribute(_OTHER_NAME, text(other))
        self._netlink.change(_request(_SWAP, CHANGE, content))

    def destroy(self, name: str) -> bool:
        """Remove a set; return whether it existed."""
        # Without this flag the kernel reports success even if the set does not exist.
        try:
            self._netlink.change(_request(_DESTROY, CHANGE | EXCLUSIVE, _name(name)))
        except NetlinkError as error:
            if error.code != errno.ENOENT:
                raise
            return False
        return True

    def _change(self, command: int, name: str, version: int, addresses: Collection[bytes]) -> None:
        before = _before_address(version, _NETWORK_ORDER)
        remaining = iter(addresses)
        while some := list(itertools.islice(remaining, _BATCH_SIZE)):
            # Each address is an attribute, and ``before`` precedes its bytes.
            content = before + before.join(some)
            more = attribute(_LINENO, bytes(4)) + attribute(_ADT | NESTED, content)
            self._netlink.change(_request(command, CHANGE, _name(name) + more))


def _request(command: int, flags: int, content: bytes, family: int = socket.AF_INET) -> bytes:
    content = attribute(_PROTOCOL, bytes([_PROTOCOL_VERSION])) + content
    return netfilter_request(_SUBSYSTEM, command, flags, content, family)


def _name(name: str) -> bytes:
    return attribute(_SETNAME, text(name))


def _type(family: int) -> bytes:
    return attribute(_TYPENAME, text(_TYPE)) + attribute(_FAMILY, bytes([family]))


def _before_address(version: int, order: int = 0) -> bytes:
    """Return the headers that precede the bytes of an address in a set.

    The attribute DATA contains the attribute IP, which contains the address. The kernel requires
    ``_NETWORK_ORDER`` in requests, and does not set it in replies, except for some old kernels.
    """
    packed = attribute(_ADDRESSES[version] | order, bytes(_LENGTHS[version]))
    whole = attribute(_DATA | NESTED, attribute(_IP | NESTED, packed))
    return whole[: -_LENGTHS[version]]


def _read_part(body: bytes, version: int, found: set[bytes]) -> bool:
    """Add the addresses in one message to ``found``; return whether the set fits."""
    fits = True
    for kind, content in netfilter_attributes(body).items():
        if kind == _TYPENAME:
            fits = fits and content.rstrip(b"\0") == _TYPE.encode()
        elif kind == _FAMILY:
            fits = fits and content[0] == FAMILIES[version]
        elif kind == _DATA:
            fits = fits and _has_parameters(dict(attributes(content)))
        elif kind == _ADT:
            fits = fits and _read_addresses(content, version, found)
    return fits


def _has_parameters(parameters: dict[int, bytes]) -> bool:
    (largest,) = struct.unpack(">I", parameters.get(_MAXELEM, bytes(4)))
    # With a mask the set contains networks, whatever is added.
    plain = parameters.keys().isdisjoint((_TIMEOUT, _CADT_FLAGS, _BITMASK, _NETMASK))
    return plain and largest >= MAX_ADDRESSES


def _read_addresses(content: bytes, version: int, found: set[bytes]) -> bool:
    # All addresses of a plain set have the same headers: parsing them without a loop takes a
    # millisecond for thousands.
    before = {_before_address(version), _before_address(version, _NETWORK_ORDER)}
    each = struct.Struct(f"{len(_before_address(version))}s{_LENGTHS[version]}s")
    if len(content) % each.size:
        return False
    pairs = list(each.iter_unpack(content))
    found.update(address for _, address in pairs)
    return {header for header, _ in pairs} <= before
