"""What each virtual service has in the table, in user mode: elements of maps."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from yurttunnel.proxy.interfaces import Placed
from yurttunnel.proxy.rules.nftables.table import Chain
from yurttunnel.proxy.rules.sources import allowed_sources
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Network,
    NobodyServes,
    Portal,
    PortalKind,
)

RESTRICTED, ALLOWED = "restricted", "allowed"
"""Sets: portals that have source ranges, and those with each of the networks."""

REFUSE = "refuse"
"""A chain that tells clients that nobody serves."""


class Way(enum.Enum):
    """By which of the two ways packets come to the rules; each has maps of its own."""

    ARRIVING = "arriving"
    OWN = "own"
    """From programs of this machine, and from pods where it is known which those are: by external
    portals they get all endpoints, whatever policies say
    (:mod:`yurttunnel.proxy.rules.within_cluster`)."""


@dataclass(frozen=True, slots=True)
class Led:
    """To where a portal leads: ``verdict`` is the data of a map ``{way}-{map}``."""

    map: str
    data: str


PORTALS, NOBODY = "portals", "nobody"
"""Maps to ports of proxy sockets, and to what clients get where nobody serves."""

NODE_PORTS = "-node-ports"
"""What the names of maps for node ports end with, whose keys have no address."""


@dataclass(frozen=True, slots=True)
class Part:
    """What of a table there is for one service."""

    chains: Mapping[str, Chain] = field(default_factory=dict)
    maps: Mapping[str, str] = field(default_factory=dict)
    elements: Mapping[tuple[str, str], str] = field(default_factory=dict)


Parts = Callable[[Placed, Placed | None, Address | None], Part]
"""Makes the part of a service; the second one serves clients within the cluster by its portals, and
is ``None`` where it does so itself. The third one is the address of this machine."""


def user_part(placed: Placed, internal: Placed | None, host: Address | None) -> Part:
    """Return the part of a service whose connections are all led to proxy sockets."""
    found = elements(placed, internal, host, lambda served, _: socket_of(served))
    return Part(elements=dict(found))


Lead = Callable[[Placed, Portal], Led]
"""Returns where a service is led to by one of its portals, or those of its external sibling."""


def socket_of(served: Placed) -> Led:
    """Return the way to the proxy socket of a service, or what clients get where it has none."""
    if served.proxy_port is not None:
        return Led(PORTALS, str(served.proxy_port))
    refused = served.service.nobody_serves is NobodyServes.REFUSED
    return Led(NOBODY, f"goto {REFUSE}" if refused else "drop")


def elements(
    placed: Placed, internal: Placed | None, host: Address | None, lead: Lead
) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the elements for all portals of a service."""
    served = {Way.ARRIVING: placed, Way.OWN: internal if internal is not None else placed}
    protocol = placed.service.key.protocol.value.lower()
    for portal in placed.service.portals:
        is_node_port = portal.kind is PortalKind.NODE_PORT
        key = f"{protocol} . {portal.port}"
        if not is_node_port:
            key = f"{portal.address} . {key}"
        for way, by in served.items():
            led = lead(by, portal)
            name = f"{way.value}-{led.map}{NODE_PORTS if is_node_port else ''}"
            yield (name, key), led.data
        sources = allowed_sources(portal, host)
        if sources is not None:
            yield (RESTRICTED, key), ""
            for network in sources:
                yield (ALLOWED, f"{key} . {_as_shown(network)}"), ""


def _as_shown(network: Network) -> str:
    """Return it as nft shows it."""
    whole = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if whole else str(network)
