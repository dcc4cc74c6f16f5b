"""What is wanted of the firewall, made of the nodes, the ports and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from yurttunnel.cluster.fields import address_in
from yurttunnel.cluster.nodes import KUBELET_PORT, Node
from yurttunnel.cluster.proxy_ports import Ports
from yurttunnel.steering.interception import Address, Interception, Match, Target

KUBELET_READ_ONLY_PORT = 10255
"""Where kubelets serve HTTP, if they do: the usual ``--read-only-port`` (kubernetes.io)."""

VERSIONS = (4, 6)

_ADDRESS_TYPES = frozenset({"InternalIP", "ExternalIP"})


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where the server listens for connections that are led to it, in one family of addresses.

    ``secure`` takes HTTPS, ``insecure`` HTTP, and ``passthrough`` whatever it is; that is ``None``
    without ``--passthrough-port``.
    """

    secure: Target
    insecure: Target
    passthrough: Target | None = None

    def targets(self) -> frozenset[Target]:
        """Give all of them."""
        return frozenset({self.secure, self.insecure, self.passthrough or self.secure})


@dataclass(frozen=True, slots=True)
class SteeringSettings:
    """What the command line says; ``period`` is in seconds.

    ``listeners`` are by the version of IP. ``match`` is ``None`` where the kernel decides:
    ``EDGE_SET`` if it has sets of addresses, else ``CLOUD_RETURN``. ``passthrough_ports`` are
    those that lead to ``Listeners.passthrough``.
    """

    listeners: Mapping[int, Listeners]
    match: Match | None
    pods: bool
    passthrough_ports: frozenset[int]
    period: float


def wanted(
    settings: SteeringSettings, match: Match, nodes: Iterable[Node], ports: Ports
) -> dict[int, Interception]:
    """Say what is to be intercepted, by the version of IP.

    Whether a node is ready does not matter: its connections go where they belong all the same. An
    address that edge and cloud nodes share, as one of a gateway, is that of a cloud node. A family
    in which the server does not listen has no ports.
    """
    edge: dict[int, set[Address]] = {version: set() for version in VERSIONS}
    cloud: dict[int, set[Address]] = {version: set() for version in VERSIONS}
    for node in nodes:
        side = edge if node.edge else cloud
        for address in _addresses(node):
            side[address.version].add(address)
    found = {}
    for version in VERSIONS:
        listeners = settings.listeners.get(version)
        leading = {} if listeners is None else _leading(listeners, settings, ports)
        found[version] = Interception(
            version=version,
            match=match,
            edge=frozenset(edge[version] - cloud[version]),
            cloud=frozenset(cloud[version]),
            ports=leading,
            pod_ports=_for_pods(leading) if settings.pods else {},
        )
    return found


def left_out(settings: SteeringSettings, interception: Interception) -> tuple[str, ...]:
    """Say in a sentence each what cannot be intercepted though it should, and what to do."""
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


def _addresses(node: Node) -> Iterator[Address]:
    for kind, text in node.addresses:
        if kind in _ADDRESS_TYPES and (address := _useful(text)) is not None:
            yield address


# Nodes change one at a time, and reading the addresses of all is most of the work.
@lru_cache(maxsize=1 << 16)
def _useful(text: str) -> Address | None:
    """Give the address, unless it means another machine everywhere."""
    address = address_in(text)
    if address is None or address.is_loopback or address.is_unspecified:
        return None
    return address


def _leading(listeners: Listeners, settings: SteeringSettings, ports: Ports) -> dict[int, Target]:
    """Say where each port leads."""
    leading = {
        **dict.fromkeys(ports.http, listeners.insecure),
        **dict.fromkeys(ports.https, listeners.secure),
        KUBELET_READ_ONLY_PORT: listeners.insecure,
        KUBELET_PORT: listeners.secure,
    }
    if listeners.passthrough is not None:
        leading.update(dict.fromkeys(settings.passthrough_ports, listeners.passthrough))
    return dict(sorted(leading.items()))


def _for_pods(leading: Mapping[int, Target]) -> dict[int, Target]:
    """Leave out the listeners that are reached from this machine alone."""
    return {
        port: target
        for port, target in leading.items()
        if target.address is None or not target.address.is_loopback
    }
