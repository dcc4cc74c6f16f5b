"""Hosts, networks and ports as text: in CONNECT targets, headers and flags (RFC 3986 section 3.2).

Names, addresses and networks have one form each, into which everything is brought that comes in:
in requests, handshakes, certificates, objects of the API, identifiers and flags. So whatever is
the same host compares as the same, and nobody gets another's by spelling it in another way.
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
"""Hosts and authorities whose canonical form is remembered: most are asked for again and again."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Host names as RFC 1123 section 2.1 has them, with the underscore that internal names often
# carry; a final dot (an absolute name) is allowed. IPv4 addresses match, right or wrong.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII | re.IGNORECASE)
_LONGEST_NAME = 253
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)

# inet_aton, and through it getaddrinfo, reads 2130706433, 0177.1 and 0x7f.1 as 127.0.0.1, and
# 010.0.0.1 as 8.0.0.1. It does so only where every label is a number: cn-hangzhou.10.0.0.1, as
# nodes of one provider are called, is a name.
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
"""What RFC 6761 section 6.3 and the /etc/hosts of Debian and Fedora call the machine itself."""
_LOOPBACK_DOMAINS = (".localhost", ".localhost.localdomain")
"""What systemd-resolved takes for it, beside those (src/basic/hostname-util.c, is_localhost)."""


class BadAuthority(ValueError):
    """The text is no authority; the message says what is wrong with it in one line."""


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

    These are the forms that yurttunnel 1.2 takes in ``X-Tunnel-Proxy-Host``; the host is in its
    canonical form. Raises :class:`BadAuthority`.
    """
    return str(canonical_host(split_optional_port(text)[0]))


def split_optional_port(text: str) -> tuple[str, int | None]:
    """Split what :func:`strip_port` takes; the port is ``None`` where there is none.

    The host is spelled as in ``text``, with its zone id. Raises :class:`BadAuthority`.
    """
    refuse_url(text)
    # Without brackets a port cannot be told from the last group of an IPv6 address.
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
    """Raise :class:`BadAuthority` for a URL, with what is to be written in its place."""
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
    if not _NAME.fullmatch(text) or len(text.rstrip(".")) > _LONGEST_NAME:
        raise BadAuthority(f"{text!r} is not a host name or an address")
    return text


@lru_cache(CACHED)
def canonical_host(text: str) -> Address | str:
    """Return the address that ``text`` is, or the name in lower case without its final dot.

    An IPv4-mapped IPv6 address (``::ffff:a.b.c.d``) is the IPv4 address. Raises
    :class:`BadAuthority` for what is neither, for an old spelling of an IPv4 address, and for a
    zone id: that names an interface of the machine that wrote it.
    """
    try:
        # The ordinary case first: a dotted quad, as new connections have to be quick.
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
    """Return the IPv4 address that an IPv4-mapped IPv6 address is, others as they are."""
    return getattr(address, "ipv4_mapped", None) or address


def address_in(text: str) -> Address | None:
    """Return the address that ``text`` is, ``None`` for a name or an address with a zone id."""
    try:
        host = canonical_host(text)
    except BadAuthority:
        return None
    return None if isinstance(host, str) else host


def known_host(host: str) -> str:
    """Return ``host`` as people know it: an address in its canonical form, all else as it is.

    A listener for both families sees the addresses of IPv4 in the mapped form.
    """
    return str(address_in(host) or host)


def parse_network(text: str) -> Network:
    """Read ``address/length``; an IPv4-mapped IPv6 network is the IPv4 network.

    Raises :class:`BadAuthority`, also for bits behind the prefix and for a zone id.
    """
    given, _, length = text.partition("/")
    if "%" in given:
        raise BadAuthority(f"{text!r} has a zone id: write the network without it")
    try:
        # ip_network would also take masks, of which it guesses the direction.
        if not (length.isascii() and length.isdecimal()):
            raise ValueError
        network = ip_network(text, strict=False)
        address = ip_address(given)
    except ValueError:
        raise BadAuthority(f"{text!r} is not a network, as 10.0.0.0/8 or fd00::/8 are") from None
    if address != network.network_address:
        raise BadAuthority(f"{text!r} has bits behind its prefix: write {network} or {given}")
    if isinstance(network, IPv6Network) and network.subnet_of(_IPV4_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def means_every_machine(host: Address | str) -> bool:
    """Return whether ``host``, in its canonical form, is something else on each machine.

    Such are the names and addresses of loopback, and link-local, unspecified and multicast
    addresses: none of them tells one machine from another.
    """
    if isinstance(host, str):
        return host in _LOOPBACK_NAMES or host.endswith(_LOOPBACK_DOMAINS)
    return host.is_loopback or host.is_link_local or host.is_unspecified or host.is_multicast


def parse_port(text: str) -> int:
    """Read a port number, 1 to 65535, in decimal. Raises :class:`BadAuthority`."""
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
