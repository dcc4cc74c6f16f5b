"""Fields of objects of the API, read so that one that is not what it should be harms nothing.

The API checks what it stores, but not for the types of labels and addresses alone: another
version of it, or whatever answers in its place, may leave out or rename anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from yurttunnel.http.authority import BadAuthority, parse_host

Address = IPv4Address | IPv6Address


def text(value: object) -> str:
    """Give a text, an empty one for anything else."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Give an object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Go through the objects in a list, and past whatever else is there."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def texts(value: object) -> Iterator[str]:
    """Go through the texts in a list, and past whatever else is there."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))


def canonical_host(host: str) -> Address | str:
    """Make one spelling of many: an address is parsed, a name loses its case and final dot.

    An IPv6 address of the form ``::ffff:a.b.c.d`` stands for the IPv4 address. Raises
    :class:`~yurttunnel.http.authority.BadAuthority` for what is neither.
    """
    address = address_in(host)
    if address is not None:
        return address
    name = parse_host(host)
    if ":" in name:
        raise BadAuthority(f"{host!r} has a zone id")
    return name.lower().removesuffix(".")


def address_in(text: str) -> Address | None:
    """Give the address that ``text`` is, ``None`` for a name, or an address with a zone id."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return None if address.scope_id is not None else address.ipv4_mapped or address
    return address
