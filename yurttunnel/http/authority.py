"""Authorities (RFC 3986 section 3.2): ``host:port`` as CONNECT targets and headers have it."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address

# A name, or an IPv4 address, of the characters that DNS names and node names use; names may
# carry an underscore or a final dot. Nothing percent-encoded, no user information.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_.])?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class BadAuthority(ValueError):
    """The text is no authority; the message says what is wrong with it in one line."""


def split_authority(text: str) -> tuple[str, int]:
    """Split ``host:port`` into the host, without the brackets of an IPv6 address, and the port.

    The port (1 to 65535) is mandatory. Raises :class:`BadAuthority`.
    """
    host, colon, port = text.rpartition(":")
    if not colon or host.endswith(":"):
        raise BadAuthority(f"{text!r} has no port: write host:port, or [address]:port for IPv6")
    return _host(host, text), parse_port(port, text)


def strip_port(text: str) -> str:
    """Give the host of ``host``, ``host:port``, ``[ipv6]``, ``[ipv6]:port`` or a bare IPv6 address.

    The rules of ``X-Tunnel-Proxy-Host`` (yurttunnel reference section 1.6), except that a bad
    host is not passed on: it raises :class:`BadAuthority`.
    """
    if text.count(":") > 1 and not text.startswith("["):
        return _ipv6(text, text)
    if ":" not in text or text.endswith("]"):
        return _host(text, text)
    return split_authority(text)[0]


def join_authority(host: str, port: int) -> str:
    """Write ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_port(port: str, text: str) -> int:
    """Read the decimal port number ``port`` that stands in ``text``."""
    if _PORT.fullmatch(port) and 1 <= (number := int(port)) <= 65535:
        return number
    raise BadAuthority(f"{text!r} has a bad port: write a number from 1 to 65535")


def _host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        return _ipv6(host[1:-1], text)
    if not _NAME.fullmatch(host):
        raise BadAuthority(f"{text!r} has a bad host: write a name, an address or [IPv6 address]")
    return host


def _ipv6(address: str, text: str) -> str:
    try:
        parsed = IPv6Address(address)
    except AddressValueError:
        parsed = None
    # A zone id names an interface of the machine that wrote it and may hold any character.
    if parsed is None or parsed.scope_id is not None:
        raise BadAuthority(f"{text!r} has a bad IPv6 address")
    return address
