"""Who a node is, as its verified certificate says."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The destinations for which an agent may be chosen.

    Named as in the ``--agent-identifiers`` flag (yurttunnel reference section 1.6): ``host``,
    ``ipv4`` and ``ipv6``, ``cidr``, ``default-route``.
    """

    hosts: frozenset[str]
    addresses: frozenset[IPv4Address | IPv6Address] = frozenset()
    networks: frozenset[IPv4Network | IPv6Network] = frozenset()
    default_route: bool = False


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What a node's certificate entitles it to.

    ``serial`` and ``not_after`` are the certificate's; ``not_after`` is in UTC.
    """

    node: str
    identifiers: Identifiers
    serial: int
    not_after: datetime.datetime
