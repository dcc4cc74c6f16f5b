"""Protection of the meta port against DNS rebinding.

A malicious web page can make its own name resolve to 127.0.0.1, and then make the browser of a user
of this machine read the pages here. The Host field of such a request has that name.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import lru_cache

from twisted.internet.address import IPv4Address as TcpAddress
from twisted.internet.address import IPv6Address as Tcp6Address

from yurttunnel.http.authority import (
    Address,
    BadAuthority,
    canonical_host,
    parse_address,
    split_optional_port,
)
from yurttunnel.ops.http_site import PageRequest

_MAX_HOST = 300
"""The maximum length of a valid ``Host`` field: a name has 253 bytes, an address with a zone
fewer."""


def refusal(request: PageRequest) -> str | None:
    """Return the reason, in one line, why ``request`` is refused, or ``None``.

    Clients on this machine must use an address, ``localhost``, or this machine's own name, which an
    attacker cannot control. Other clients may use any name of the meta port.
    """
    peer = request.transport.getPeer()
    if not isinstance(peer, TcpAddress | Tcp6Address) or not is_loopback(peer.host):
        return None
    hosts = request.head.values(b"host")
    if len(hosts) == 1 and names_this_machine(hosts[0]):
        return None
    return "on this machine, use an IP address, localhost, or this machine's own name"


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address, in whatever spelling."""
    address = parse_address(host)
    return address is not None and address.is_loopback


def requested_host(field: bytes) -> Address | str | None:
    """Return the canonical form of the host in a ``Host`` field, or ``None``."""
    return _requested_host(field) if len(field) <= _MAX_HOST else None


@lru_cache(256)
def _requested_host(field: bytes) -> Address | str | None:
    try:
        return canonical_host(split_optional_port(field.decode("ascii"))[0])
    except (UnicodeDecodeError, BadAuthority):
        return None


def is_cross_origin(host: bytes, sites: Sequence[bytes], origins: Sequence[bytes]) -> bool:
    """Return whether a browser sends a request for a page of another site than ``host``, over HTTP.

    ``sites`` and ``origins`` are the values of ``Sec-Fetch-Site`` (Fetch Metadata) and ``Origin``
    (RFC 6454); clients other than browsers send neither.
    """
    own = b"http://" + host.lower()
    return any(site not in (b"same-origin", b"none") for site in sites) or any(
        origin.lower() != own for origin in origins
    )


def names_this_machine(field: bytes) -> bool:
    """Return whether the value of a ``Host`` field is an address, or a name of this machine."""
    host = requested_host(field)
    return isinstance(host, Address) or host in ("localhost", socket.gethostname().lower())
