"""Hosts and ports as text: in CONNECT targets, in headers and in flags (RFC 3986 section 3.2)."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address

# Host names as RFC 1123 section 2.1 has them, with the underscore that internal names often
# carry; a final dot (an absolute name) is allowed. IPv4 addresses match, right or wrong.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII | re.IGNORECASE)
_LONGEST_NAME = 253
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class BadAuthority(ValueError):
    """The text is no authority; the message says what is wrong with it in one line."""


def split_authority(text: str) -> tuple[str, int]:
    """Split ``host:port`` into the host, without the brackets of an IPv6 address, and the port.

    The port is mandatory, and an address has no zone id: that names an interface of the machine
    that wrote it. Raises :class:`BadAuthority`.
    """
    host, port = split_optional_port(text)
    if port is None:
        raise BadAuthority(f"{text!r} has no port: write host:port, or [address]:port for IPv6")
    return _without_zone(host), port


def strip_port(text: str) -> str:
    """Give the host of ``host``, ``host:port``, ``[ipv6]``, ``[ipv6]:port`` or a bare IPv6 address.

    These are the forms that yurttunnel 1.2 takes in ``X-Tunnel-Proxy-Host``. Raises
    :class:`BadAuthority`.
    """
    return _without_zone(split_optional_port(text)[0])


def split_optional_port(text: str) -> tuple[str, int | None]:
    """Split what :func:`strip_port` takes; the port is ``None`` where there is none.

    A zone id is kept. Raises :class:`BadAuthority`.
    """
    # Without brackets a port cannot be told from the last group of an IPv6 address.
    bare_ipv6 = text.count(":") > 1 and not text.startswith("[")
    if ":" not in text or text.endswith("]") or bare_ipv6:
        return parse_host(text), None
    host, _, port = text.rpartition(":")
    return parse_host(host), parse_port(port)


def join_authority(host: str, port: int) -> str:
    """Write ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_host(text: str) -> str:
    """Check a host name or an address; brackets around an IPv6 address are removed.

    A zone id (``fe80::1%eth0``) is kept. Raises :class:`BadAuthority`.
    """
    if text.startswith("[") and text.endswith("]"):
        return _ipv6(text[1:-1])
    if ":" in text:
        return _ipv6(text)
    if not _NAME.fullmatch(text) or len(text.rstrip(".")) > _LONGEST_NAME:
        raise BadAuthority(f"{text!r} is not a host name or an address")
    return text


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


def _without_zone(host: str) -> str:
    if "%" in host:
        raise BadAuthority(f"{host!r} has a zone id: write the address without it")
    return host
