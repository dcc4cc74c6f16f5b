"""Hosts, networks and ports as text: in CONNECT targets, headers and flags (RFC 3986 section 3.2).

Names, addresses and networks each have one canonical form. All input is converted to it: requests,
handshakes, certificates, API objects, identifiers and flags. So two spellings of one host compare
as equal, and no client gains access to another's host by a different spelling.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

CACHED = 4096
"""The size of the caches of canonical hosts and authorities; most recur again and again."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Host names as in RFC 1123 section 2.1, plus the underscore that internal names often contain. A
# final dot (an absolute name) is allowed. IPv4 addresses match too, valid or not.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII | re.IGNORECASE)
_MAX_NAME = 253
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)

# inet_aton, and through it getaddrinfo, reads 2130706433, 0177.1 and 0x7f.1 as 127.0.0.1, and
# 010.0.0.1 as 8.0.0.1, but only if every label is a number: cn-hangzhou.10.0.0.1, a node name of
# one provider, is a name.
_NUMBER = r"(?:[0-9]+|0[xX][0-9a-fA-F]*)"
_OLD_IPV4 = re.compile(rf"{_NUMBER}(?:\.{_NUMBER})*\.?", re.ASCII)

_IPV4_MAPPED = IPv6Network("::ffff:0:0/96")

_LOOPBACK_NAMES = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    }
)
"""Names of the local machine in RFC 6761 section 6.3 and /etc/hosts of Debian and Fedora."""
_LOOPBACK_DOMAINS = (".localhost", ".localhost.localdomain")
"""Further names that systemd-resolved treats as local (src/basic/hostname-util.c, is_localhost)."""


class BadAuthority(ValueError):
    """The text is not a valid authority; the message says why in one line."""


@lru_cache(CACHED)
def split_authority(text: str) -> tuple[str, int]:
    """Split ``host:port`` into the host, in its canonical form, and the port.

    The port is mandatory. Raises :class:`BadAuthority`.
    """
    host, port = split_optional_port(text)
    if port is None:
        raise BadAuthority(f"{text!r} has no port: write host:port, or [address]:port for IPv6")
    return str(canonical_host(host)), port


def strip_port(text: str) -> str:
    """Return the host of ``host``, ``host:port``, ``[ipv6]``, ``[ipv6]:port`` or bare IPv6.

    yurttunnel 1.2 accepts these forms in ``X-Tunnel-Proxy-Host``. The returned host is in canonical
    form. Raises :class:`BadAuthority`.
    """
    return str(canonical_host(split_optional_port(text)[0]))


def split_optional_port(text: str) -> tuple[str, int | None]:
    """Split any form that :func:`strip_port` accepts; the port is ``None`` if absent.

    The host is returned as spelled in ``text``, zone id included. Raises :class:`BadAuthority`.
    """
    refuse_url(text)
    # Without brackets a port cannot be distinguished from the last group of an IPv6 address.
    bare_ipv6 = text.count(":") > 1 and not text.startswith("[")
    if ":" not in text or text.endswith("]") or bare_ipv6:
        return parse_host(text), None
    host, _, port = text.rpartition(":")
    return parse_host(host), parse_port(port)


@lru_cache(CACHED)
def join_authority(host: str, port: int) -> str:
    """Write ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refuse_url(text: str) -> None:
    """Raise :class:`BadAuthority` for a URL; the message suggests what to write instead."""
    if "://" in text:
        authority = text.partition("://")[2].partition("/")[0]
        raise BadAuthority(f"{text!r} is a URL: write {authority or 'HOST:PORT'}")


def parse_host(text: str) -> str:
    """Check a host name or an address; brackets around an IPv6 address are removed.

    A zone id (``fe80::1%eth0``) is kept. Raises :class:`BadAuthority`.
    """
    refuse_url(text)
    if text.startswith("[") and text.endswith("]"):
        return _ipv6(text[1:-1])
    if ":" in text:
        return _ipv6(text)
    if not _NAME.fullmatch(text) or len(text.rstrip(".")) > _MAX_NAME:
        raise BadAuthority(f"{text!r} is not a host name or an address")
    return text


@lru_cache(CACHED)
def canonical_host(text: str) -> Address | str:
    """Parse ``text`` as an address, or return the name in lower case without its final dot.

    An IPv4-mapped IPv6 address (``::ffff:a.b.c.d``) becomes the IPv4 address. Raises
    :class:`BadAuthority` for anything else, for an old spelling of an IPv4 address, and for a
    zone id, which names an interface of the machine that wrote it.
    """
    try:
        # The common case first, a dotted quad: this is on the path of each new connection.
        return IPv4Address(text)
    except AddressValueError:
        pass
    host = parse_host(text)
    if ":" in host:
        address = IPv6Address(host)
        if address.scope_id is not None:
            raise BadAuthority(f"{text!r} has a zone id: write the address without it")
        return canonical_address(address)
    if _OLD_IPV4.fullmatch(host):
        raise BadAuthority(f"{text!r} is not an IPv4 address of four decimal numbers")
    return host.lower().removesuffix(".")


def canonical_address(address: Address) -> Address:
    """Convert an IPv4-mapped IPv6 address to IPv4; return all others unchanged."""
    return getattr(address, "ipv4_mapped", None) or address


def parse_address(text: str) -> Address | None:
    """Parse ``text`` as an address; return ``None`` for a name or an address with a zone id."""
    try:
        host = canonical_host(text)
    except BadAuthority:
        return None
    return None if isinstance(host, str) else host


def display_host(host: str) -> str:
    """Return ``host`` for display: an address in canonical form, anything else unchanged.

    A dual-stack listener sees IPv4 addresses in their IPv4-mapped form.
    """
    return str(parse_address(host) or host)


def parse_network(text: str) -> Network:
    """Parse ``address/length``; an IPv4-mapped IPv6 network becomes the IPv4 network.

    Raises :class:`BadAuthority`, also for host bits that are set and for a zone id.
    """
    given, _, length = text.partition("/")
    if "%" in given:
        raise BadAuthority(f"{text!r} has a zone id: write the network without it")
    try:
        # ip_network would also accept masks, and guesses whether one is a netmask or a hostmask.
        if not (length.isascii() and length.isdecimal()):
            raise ValueError
        network = ip_network(text, strict=False)
        address = ip_address(given)
    except ValueError:
        raise BadAuthority(f"{text!r} is not a network such as 10.0.0.0/8 or fd00::/8") from None
    if address != network.network_address:
        raise BadAuthority(f"{text!r} has host bits set: write {network} or {given}")
    if isinstance(network, IPv6Network) and network.subnet_of(_IPV4_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def is_machine_specific(host: Address | str) -> bool:
    """Return whether ``host``, in canonical form, means a different machine on each machine.

    This holds for loopback names and addresses and for link-local, unspecified and multicast
    addresses: none of them identifies one machine.
    """
    if isinstance(host, str):
        return host in _LOOPBACK_NAMES or host.endswith(_LOOPBACK_DOMAINS)
    return host.is_loopback or host.is_link_local or host.is_unspecified or host.is_multicast


def parse_port(text: str) -> int:
    """Parse a decimal port number, 1 to 65535. Raises :class:`BadAuthority`."""
    if _PORT.fullmatch(text) and 1 <= (number := int(text)) <= 65535:
        return number
    raise BadAuthority(f"{text!r} is not a port: write a number from 1 to 65535")


def _ipv6(text: str) -> str:
    try:
        IPv6Address(text)
    except AddressValueError:
        raise BadAuthority(
            f"{text!r} is not an IPv6 address (with a port it is written [address]:port)"
        ) from None
    return text
