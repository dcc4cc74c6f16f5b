"""The part of the table for each virtual service in user mode: elements of maps."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.rules.nftables.table import Chain
from yurttunnel.proxy.rules.source_ranges import allowed_sources
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Network,
    NoEndpointsAction,
    Portal,
    PortalKind,
)

RESTRICTED, ALLOWED = "restricted", "allowed"
"""Sets: portals with source ranges, and these portals with each of the networks."""

REFUSE = "refuse"
"""A chain that rejects clients because there are no endpoints."""


class Direction(enum.Enum):
    """The two directions from which packets reach the rules; each has its own maps."""

    INCOMING = "arriving"
    LOCAL = "own"
    """From programs of this machine, and from pods if their networks are known: at external portals
    they get all endpoints, whatever the policies are
    (:mod:`yurttunnel.proxy.rules.in_cluster`)."""


@dataclass(frozen=True, slots=True)
class PortalTarget:
    """Where a portal leads: ``data`` is its value in a map ``{direction}-{map}``."""

    map: str
    data: str


PORTALS, NOBODY = "portals", "nobody"
"""Maps to ports of proxy sockets, and to the verdicts for clients without endpoints."""

NODE_PORTS = "-node-ports"
"""The suffix of maps for node ports, whose keys have no address."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a table for one service."""

    chains: Mapping[str, Chain] = field(default_factory=dict)
    maps: Mapping[str, str] = field(default_factory=dict)
    elements: Mapping[tuple[str, str], str] = field(default_factory=dict)


Parts = Callable[[ProxiedService, ProxiedService | None, Address | None], Part]
"""Makes the part of a service. The second argument is the service for clients within the cluster
that use its portals, ``None`` if it is the same. The third one is the address of this machine."""


def user_part(
    proxied: ProxiedService, internal: ProxiedService | None, host: Address | None
) -> Part:
    """Return the part of a service whose connections are all redirected to proxy sockets."""
    found = elements(proxied, internal, host, lambda served, _: socket_target(served))
    return Part(elements=dict(found))


TargetSelector = Callable[[ProxiedService, Portal], PortalTarget]
"""Returns where a service is led by one of its portals, or by those of its external sibling."""


def socket_target(served: ProxiedService) -> PortalTarget:
    """Return the element for the proxy socket of a service, or the verdict if it has none."""
    if served.proxy_port is not None:
        return PortalTarget(PORTALS, str(served.proxy_port))
    refused = served.service.no_endpoints_action is NoEndpointsAction.REFUSED
    return PortalTarget(NOBODY, f"goto {REFUSE}" if refused else "drop")


def elements(
    proxied: ProxiedService,
    internal: ProxiedService | None,
    host: Address | None,
    select_target: TargetSelector,
) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the elements for all portals of a service."""
    served = {
        Direction.INCOMING: proxied,
        Direction.LOCAL: internal if internal is not None else proxied,
    }
    protocol = proxied.service.key.protocol.value.lower()
    for portal in proxied.service.portals:
        is_node_port = portal.kind is PortalKind.NODE_PORT
        key = f"{protocol} . {portal.port}"
        if not is_node_port:
            key = f"{portal.address} . {key}"
        for direction, by in served.items():
            target = select_target(by, portal)
            name = f"{direction.value}-{target.map}{NODE_PORTS if is_node_port else ''}"
            yield (name, key), target.data
        sources = allowed_sources(portal, host)
        if sources is not None:
            yield (RESTRICTED, key), ""
            for network in sources:
                yield (ALLOWED, f"{key} . {_as_shown(network)}"), ""


def _as_shown(network: Network) -> str:
    """Return a network as nft shows it."""
    whole = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if whole else str(network)
