"""Pages of the meta port against names that are made to lead here (DNS rebinding).

A web page of an attacker may give its own name the address 127.0.0.1, and then have the browser
of somebody on this machine read what is served there. The Host field tells: it has that name.
"""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address

from twisted.internet.address import IPv4Address as TcpAddress
from twisted.internet.address import IPv6Address as Tcp6Address
from twisted.web.http import Request

from yurttunnel.http.authority import BadAuthority, split_optional_port


def refusal(request: Request) -> str | None:
    """Say in one line why ``request`` is refused, ``None`` when it is not.

    Clients on this machine have to ask for an address, ``localhost``, or this machine's own name,
    which nobody else can make lead here. Others know the meta port by whatever name it has.
    """
    peer = request.getClientAddress()
    if not isinstance(peer, TcpAddress | Tcp6Address) or not is_loopback(peer.host):
        return None
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    if len(hosts) == 1 and is_of_this_machine(hosts[0]):
        return None
    return "on this machine, ask for an IP address, localhost, or this machine's own name"


def is_loopback(host: str) -> bool:
    """Say whether ``host`` is a loopback address, in whatever spelling."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_of_this_machine(field: bytes) -> bool:
    """Say whether the value of a ``Host`` field is an address, or a name of this machine."""
    try:
        host, _ = split_optional_port(field.decode("ascii"))
    except (UnicodeDecodeError, BadAuthority):
        return False
    if host.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
