"""The kernel's sets of addresses (ipset), one request after the other."""

from __future__ import annotations

import errno
import itertools
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

from pyroute2.netlink import NLM_F_EXCL
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_IPSET
from pyroute2.netlink.nfnetlink.ipset import (
    IPSET_CMD_ADD,
    IPSET_CMD_CREATE,
    IPSET_CMD_DEL,
    IPSET_CMD_DESTROY,
    IPSET_CMD_LIST,
    IPSET_CMD_SWAP,
    IPSET_CMD_TYPE,
    IPSET_ERR_FIND_TYPE,
    ipset_msg,
)

from yurttunnel.steering.netlink.messages import NESTED, attribute, attributes, raw_request, request
from yurttunnel.steering.netlink.netlink_socket import (
    CHANGE,
    DUMP,
    GET,
    NetlinkError,
    NetlinkSocket,
)

MAX_ADDRESSES = 1 << 20
"""The maximum number of addresses in a set; the default, 65,536, is too few for large clusters."""

_TYPE = "hash:ip"
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_LENGTHS = {4: 4, 6: 16}

_PROTOCOL = 6
"""The version of the ipset protocol that every kernel since 2.6.39 accepts."""

_REVISION = 0
"""The revision of the set type: the first is sufficient, and every kernel supports it."""

_BATCH_SIZE = 1000
"""The number of addresses in one message. An attribute has at most 64 KiB, and the set is locked
while the kernel processes it."""

_HEADER_SIZE = 4
"""The size of ``struct nfgenmsg``, which precedes the attributes."""

# IPSET_ATTR_* from linux/netfilter/ipset/ip_set.h: of commands, and within DATA.
_SETNAME, _TYPENAME, _FAMILY, _DATA, _ADT, _LINENO = 2, 3, 5, 7, 8, 9
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
            for family in _FAMILIES.values():
                message = _message(family=family, typename=_TYPE)
                self._netlink.get(request(message, _kind(IPSET_CMD_TYPE), GET))
        except NetlinkError as error:
            if error.code not in (errno.EINVAL, IPSET_ERR_FIND_TYPE):
                raise
            return False
        return True

    def has_match(self) -> bool:
        """Return whether rules can refer to sets, as far as the kernel can be queried.

        The query uses the compatibility of nftables with iptables. A kernel without it, which has
        legacy iptables only, is assumed to have the match that has always been part of sets.
        """
        body = struct.pack("=BBH", socket.AF_INET, 0, 0) + b"".join(
            (
                attribute(_COMPAT_NAME, b"set\0"),
                attribute(_COMPAT_REVISION, struct.pack(">I", 0)),
                attribute(_COMPAT_KIND, struct.pack(">I", 0)),
            )
        )
        try:
            self._netlink.get(raw_request(body, _NFT_COMPAT << 8, GET))
        except NetlinkError as error:
            return error.code != errno.ENOENT
        return True

    def read(self, name: str, version: int) -> Content | None:
        """Return the content of a set, ``None`` if it does not exist; ``version`` is expected."""
        query = request(_message(name=name), _kind(IPSET_CMD_LIST), DUMP)
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
        message = _message(name=name, typename=_TYPE, family=_FAMILIES[version])
        message["attrs"] += [
            ["IPSET_ATTR_REVISION", _REVISION],
            ["IPSET_ATTR_DATA", {"attrs": [["IPSET_ATTR_MAXELEM", MAX_ADDRESSES]]}],
        ]
        flags = CHANGE | NLM_F_EXCL
        self._netlink.change(request(message, _kind(IPSET_CMD_CREATE), flags))

    def add(self, name: str, version: int, addresses: Collection[bytes]) -> None:
        """Add addresses to a set; existing ones are ignored."""
        self._change(IPSET_CMD_ADD, name, version, addresses)

    def delete(self, name: str, version: int, addresses: Collection[bytes]) -> None:
        """Delete addresses from a set; missing ones are ignored."""
        self._change(IPSET_CMD_DEL, name, version, addresses)

    def swap(self, name: str, other: str) -> None:
        """Exchange the names of two sets, also in the rules that refer to them."""
        message = _message(name=name)
        message["attrs"].append(["IPSET_ATTR_TYPENAME", other])  # its number means "other name"
        self._netlink.change(request(message, _kind(IPSET_CMD_SWAP), CHANGE))

    def destroy(self, name: str) -> bool:
        """Remove a set; return whether it existed."""
        # Without this flag the kernel reports success even if the set does not exist.
        query = request(_message(name=name), _kind(IPSET_CMD_DESTROY), CHANGE | NLM_F_EXCL)
        try:
            self._netlink.change(query)
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
            query = request(_message(name=name), _kind(command), CHANGE, more)
            self._netlink.change(query)


def _message(
    name: str | None = None, typename: str | None = None, family: int | None = None
) -> ipset_msg:
    message = ipset_msg()
    message["nfgen_family"] = family or socket.AF_INET
    message["attrs"] = [["IPSET_ATTR_PROTOCOL", _PROTOCOL]]
    if name is not None:
        message["attrs"].append(["IPSET_ATTR_SETNAME", name])
    if typename is not None:
        message["attrs"].append(["IPSET_ATTR_TYPENAME", typename])
    if family is not None:
        message["attrs"].append(["IPSET_ATTR_FAMILY", family])
    return message


def _kind(command: int) -> int:
    return int(NFNL_SUBSYS_IPSET << 8 | command)


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
    for kind, content in attributes(body, _HEADER_SIZE):
        if kind == _TYPENAME:
            fits = fits and content.rstrip(b"\0") == _TYPE.encode()
        elif kind == _FAMILY:
            fits = fits and content[0] == _FAMILIES[version]
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
