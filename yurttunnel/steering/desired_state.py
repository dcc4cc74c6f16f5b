"""The desired state of the firewall, computed from the nodes, the ports and the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address
from typing import NamedTuple

from yurttunnel.cluster.nodes import Node
from yurttunnel.cluster.proxy_ports import Ports
from yurttunnel.http.authority import parse_address
from yurttunnel.steering.interception import Address, Interception, Match, Target
from yurttunnel.steering.interfaces import VERSIONS
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT, KUBELET_READ_ONLY_PORT

MAX_ADDRESSES_PER_NODE = 16
"""The maximum number of addresses used of a node, whose own kubelet writes any number of them."""

MAX_REPORTED = 10
"""The maximum number of items of a kind that are reported one by one."""

_ADDRESS_TYPES = frozenset({"InternalIP", "ExternalIP"})

_BROADCAST = IPv4Address("255.255.255.255")


class Listeners(NamedTuple):
    """Where the server listens for redirected connections of one address family.

    ``secure`` is for HTTPS, ``insecure`` for HTTP, and ``passthrough`` for any protocol; that is
    ``None`` without ``--passthrough-port``.
    """

    secure: Target
    insecure: Target
    passthrough: Target | None = None

    def targets(self) -> frozenset[Target]:
        """Return all listeners, without duplicates."""
        return frozenset({self.secure, self.insecure, self.passthrough or self.secure})


class SteeringSettings(NamedTuple):
    """The settings from the command line; ``period`` is in seconds.

    ``listeners`` are by the version of IP. If ``match`` is ``None``, it depends on the kernel:
    ``EDGE_SET`` if it supports sets of addresses, else ``CLOUD_RETURN``. ``passthrough_ports`` are
    redirected to ``Listeners.passthrough``.
    """

    listeners: Mapping[int, Listeners]
    match: Match | None
    pods: bool
    passthrough_ports: frozenset[int]
    period: float


@dataclass(slots=True)
class _Sides:
    """The addresses of one family, each with a node, and the nodes with too many addresses."""

    edge: dict[Address, str] = field(default_factory=dict)
    cloud: dict[Address, str] = field(default_factory=dict)
    with_too_many: list[str] = field(default_factory=list)


def desired(
    settings: SteeringSettings,
    match: Match,
    nodes: Iterable[Node],
    ports: Ports,
    services: Collection[Address],
) -> dict[int, Interception]:
    """Return what is to be intercepted, by the version of IP.

    The readiness of a node does not matter. An address that edge and cloud nodes share, such as
    that of a gateway, counts as one of a cloud node. The addresses of ``services`` are not those of
    nodes. A family in which the server does not listen has no ports.
    """
    sides = _sides(nodes, services)
    found = {}
    for version in VERSIONS:
        edge, cloud = frozenset(sides[version].edge), frozenset(sides[version].cloud)
        listeners = settings.listeners.get(version)
        targets = {} if listeners is None else _port_targets(listeners, settings, ports)
        found[version] = Interception(
            version=version,
            match=match,
            edge=edge - cloud,
            cloud=cloud,
            ports=targets,
            pod_ports=_reachable_by_pods(targets) if settings.pods else {},
            notes=(
                *_shared(edge & cloud, sides[version]),
                *_with_too_many_addresses(version, sides[version]),
            ),
        )
    return found


def not_intercepted(settings: SteeringSettings, interception: Interception) -> tuple[str, ...]:
    """Return sentences about what should be intercepted but cannot be, and how to fix it."""
    return (*interception.notes, *_without_listener(settings, interception))


def _without_listener(settings: SteeringSettings, interception: Interception) -> tuple[str, ...]:
    """Return what cannot be intercepted because of where the server listens."""
    if not interception.edge:
        return ()
    version = interception.version
    if version not in settings.listeners:
        return (
            f"connections to the IPv{version} addresses of edge nodes are not intercepted, since"
            f" the server does not listen on IPv{version}: see --bind-address",
        )
    missing = interception.ports.keys() - interception.pod_ports.keys()
    if not settings.pods or not missing:
        return ()
    return (
        f"IPv{version} connections of pods to port {', '.join(map(str, sorted(missing)))} are not"
        " intercepted, since they lead to a listener on a loopback address, which pods do not"
        " reach: see --insecure-bind-address and --bind-address",
    )


def _sides(nodes: Iterable[Node], services: Collection[Address]) -> dict[int, _Sides]:
    """Group the addresses by the version of IP."""
    sides = {version: _Sides() for version in VERSIONS}
    for node in nodes:
        addresses = _addresses(node)
        for address in addresses[:MAX_ADDRESSES_PER_NODE]:
            family = sides[address.version]
            side = family.edge if node.edge else family.cloud
            # Report the same node regardless of the order.
            if side.setdefault(address, node.name) > node.name:
                side[address] = node.name
        for version in {address.version for address in addresses[MAX_ADDRESSES_PER_NODE:]}:
            sides[version].with_too_many.append(node.name)
    for address in services:
        sides[address.version].edge.pop(address, None)
        sides[address.version].cloud.pop(address, None)
    return sides


def _shared(addresses: Collection[Address], sides: _Sides) -> Iterator[str]:
    """Report addresses that are not intercepted because a cloud node has them, too."""
    shared = sorted(addresses, key=int)
    for address in shared[:MAX_REPORTED]:
        yield (
            f"connections to {address} are not intercepted, since it is an address of the cloud"
            f" node {sides.cloud[address]} as well as of the edge node {sides.edge[address]}: one"
            " of them reports a wrong address, or lacks its label (kubectl get nodes -o wide)"
        )
    if len(shared) > MAX_REPORTED:
        yield f"the same applies to {len(shared) - MAX_REPORTED} more addresses"


def _with_too_many_addresses(version: int, sides: _Sides) -> Iterator[str]:
    """Report nodes with more addresses than are used."""
    with_too_many = sorted(sides.with_too_many)
    for name in with_too_many[:MAX_REPORTED]:
        yield (
            f"some IPv{version} addresses of node {name} are ignored, because it has more than"
            f" {MAX_ADDRESSES_PER_NODE} addresses: see what its kubelet lists (kubectl get node"
            f" {name} -o jsonpath='{{.status.addresses}}')"
        )
    if len(with_too_many) > MAX_REPORTED:
        yield (
            f"the same applies to IPv{version} addresses of {len(with_too_many) - MAX_REPORTED}"
            " more nodes"
        )


def _addresses(node: Node) -> list[Address]:
    """Return the addresses by which a node may be reached, without duplicates."""
    found = [
        address
        for kind, text in node.addresses
        if kind in _ADDRESS_TYPES and (address := _unicast_address(text)) is not None
    ]
    return found if len(found) < 2 else list(dict.fromkeys(found))


# Nodes change one at a time, and parsing the addresses of all is most of the work.
@lru_cache(maxsize=1 << 16)
def _unicast_address(text: str) -> Address | None:
    """Return the address, unless it has a special meaning: any machine, many machines, or none.

    Some clouds use addresses of 240.0.0.0/4, which is still reserved, for their machines.
    """
    address = parse_address(text)
    if (
        address is None
        or address.is_loopback
        or address.is_unspecified
        or address.is_link_local
        or address.is_multicast
        or address == _BROADCAST
    ):
        return None
    return address


def _port_targets(
    listeners: Listeners, settings: SteeringSettings, ports: Ports
) -> dict[int, Target]:
    """Return the target of each port."""
    targets = {
        **dict.fromkeys(ports.http, listeners.insecure),
        **dict.fromkeys(ports.https, listeners.secure),
        KUBELET_READ_ONLY_PORT: listeners.insecure,
        KUBELET_PORT: listeners.secure,
    }
    if listeners.passthrough is not None:
        targets.update(dict.fromkeys(settings.passthrough_ports, listeners.passthrough))
    return dict(sorted(targets.items()))


def _reachable_by_pods(targets: Mapping[int, Target]) -> dict[int, Target]:
    """Omit listeners that can only be reached from this machine."""
    return {
        port: target
        for port, target in targets.items()
        if target.address is None or not target.address.is_loopback
    }
