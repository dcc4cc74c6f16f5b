"""Network interfaces of this network namespace, with rtnetlink(7); call it in a thread."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address

from yurttunnel.http.authority import Address
from yurttunnel.steering.netlink.messages import (
    FAMILIES,
    NESTED,
    attribute,
    attributes,
    raw_request,
    text,
)
from yurttunnel.steering.netlink.netlink_socket import (
    CHANGE,
    CREATE,
    DUMP,
    EXCLUSIVE,
    GET,
    NETLINK_ROUTE,
    NetlinkError,
    NetlinkSocket,
)

# linux/rtnetlink.h
_NEW_LINK, _DELETE_LINK, _GET_LINK = 16, 17, 18
_NEW_ADDRESS, _DELETE_ADDRESS, _GET_ADDRESS = 20, 21, 22
# linux/if_link.h, linux/if_addr.h
_NAME, _LINK_INFO, _ALIAS, _INFO_KIND = 3, 18, 20, 1
_ADDRESS, _LOCAL = 1, 2
_NO_DETECTION = 0x02
"""``IFA_F_NODAD``: no duplicate address detection, because no other host is on the link."""
_LINK = struct.Struct("=BxHiII")
"""``struct ifinfomsg``: family, type, index, flags, change mask."""
_OF_LINK = struct.Struct("=BBBBI")
"""``struct ifaddrmsg``: family, length of the prefix, flags, scope, index."""
_UP = 0x1

# linux/if_tun.h
_TUN_DEVICE = "/dev/net/tun"
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER = 0x400454CA, 0x400454CB, 0x400454CC
_TAP, _NO_PACKET_INFO = 0x0002, 0x1000
_REQUEST = struct.Struct("16sH22x")
"""``struct ifreq`` with a name and flags."""


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface; ``kind`` is that of ``ip -details link``, such as dummy or tun."""

    index: int
    kind: str
    alias: str
    up: bool


class Links:
    """Requests to rtnetlink; all methods raise ``NetlinkError`` or ``OSError``."""

    def __init__(self, netlink: NetlinkSocket) -> None:
        self._netlink = netlink

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Links]:
        """Open a netlink socket for the duration of a block."""
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            yield cls(netlink)

    def find(self, name: str) -> Link | None:
        """Return the interface with a name."""
        request = _LINK.pack(0, 0, 0, 0, 0) + attribute(_NAME, text(name))
        try:
            body = self._netlink.get(raw_request(request, _GET_LINK, GET))
        except NetlinkError as error:
            if error.code == errno.ENODEV:
                return None
            raise
        _, _, index, flags, _ = _LINK.unpack_from(body)
        found = dict(attributes(body, _LINK.size))
        info = dict(attributes(found.get(_LINK_INFO, b"")))
        return Link(
            index,
            _read(info.get(_INFO_KIND, b"")),
            _read(found.get(_ALIAS, b"")),
            bool(flags & _UP),
        )

    def add_dummy(self, name: str) -> None:
        """Create a dummy interface; ``EOPNOTSUPP`` means that this kernel has none."""
        info = attribute(_LINK_INFO | NESTED, attribute(_INFO_KIND, text("dummy")))
        body = _LINK.pack(0, 0, 0, 0, 0) + attribute(_NAME, text(name)) + info
        flags = CHANGE | CREATE | EXCLUSIVE
        self._netlink.change(raw_request(body, _NEW_LINK, flags))

    def mark(self, link: Link, alias: str) -> None:
        """Set the alias, which ``ip link`` shows."""
        body = _LINK.pack(0, 0, link.index, 0, 0) + attribute(_ALIAS, text(alias))
        self._netlink.change(raw_request(body, _NEW_LINK, CHANGE))

    def set_up(self, link: Link) -> None:
        """Set the interface up."""
        body = _LINK.pack(0, 0, link.index, _UP, _UP)
        self._netlink.change(raw_request(body, _NEW_LINK, CHANGE))

    def remove(self, link: Link) -> None:
        """Remove the interface."""
        body = _LINK.pack(0, 0, link.index, 0, 0)
        self._netlink.change(raw_request(body, _DELETE_LINK, CHANGE))

    def addresses(self, link: Link, version: int) -> set[tuple[Address, int]]:
        """Return the addresses of one family, with their prefix lengths."""
        request = raw_request(_OF_LINK.pack(FAMILIES[version], 0, 0, 0, 0), _GET_ADDRESS, DUMP)
        found = set()
        for body in self._netlink.dump(request):
            family, length, _, _, index = _OF_LINK.unpack_from(body)
            if index == link.index and family == FAMILIES[version]:
                attributes_of_address = dict(attributes(body, _OF_LINK.size))
                packed = attributes_of_address.get(_LOCAL, attributes_of_address.get(_ADDRESS, b""))
                found.add((ip_address(packed), length))
        return found

    def add_address(self, link: Link, address: Address, length: int) -> None:
        """Add an address."""
        body = _address(link, address, length)
        flags = CHANGE | CREATE | EXCLUSIVE
        self._netlink.change(raw_request(body, _NEW_ADDRESS, flags))

    def remove_address(self, link: Link, address: Address, length: int) -> None:
        """Remove an address if it exists: removing the first of a network removes its others."""
        body = _address(link, address, length)
        try:
            self._netlink.change(raw_request(body, _DELETE_ADDRESS, CHANGE))
        except NetlinkError as error:
            if error.code != errno.EADDRNOTAVAIL:
                raise


def add_tap(name: str) -> None:
    """Create a TAP device that outlives this process; raise ``OSError``.

    No process reads from it. It only has to hold an address.
    """
    device = os.open(_TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _TUNSETIFF, _REQUEST.pack(name.encode(), _TAP | _NO_PACKET_INFO))
        fcntl.ioctl(device, _TUNSETOWNER, os.geteuid())
        fcntl.ioctl(device, _TUNSETPERSIST, 1)
    finally:
        os.close(device)


def _read(content: bytes) -> str:
    return content.rstrip(b"\0").decode("utf-8", "replace")


def _address(link: Link, address: Address, length: int) -> bytes:
    flags = 0 if isinstance(address, IPv4Address) else _NO_DETECTION
    head = _OF_LINK.pack(FAMILIES[address.version], length, flags, 0, link.index)
    return head + attribute(_LOCAL, address.packed) + attribute(_ADDRESS, address.packed)
