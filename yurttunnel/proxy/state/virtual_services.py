"""Virtual services: portals of one port of a Service, and the endpoints that serve them.

The terms are those of IPVS and of the first kube-proxy: clients speak to a *portal* (an address and
a port that nobody listens at), and are served by an *endpoint*.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Protocol(enum.Enum):
    """What is carried; SCTP is not."""

    TCP = "TCP"
    UDP = "UDP"

    @property
    def number(self) -> int:
        """Its number in IP headers (``IPPROTO_*``)."""
        return socket.IPPROTO_TCP if self is Protocol.TCP else socket.IPPROTO_UDP


@dataclass(frozen=True, slots=True, order=True)
class ServicePortName:
    """A port of a Service; ``port`` is its name, empty where a Service has but one."""

    namespace: str
    name: str
    port: str

    def __str__(self) -> str:
        """Return it as rules, logs and the page have it: ``namespace/name:port``."""
        return f"{self.namespace}/{self.name}" + (f":{self.port}" if self.port else "")


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where a pod (or whatever else serves) is reached."""

    address: Address
    port: int

    def __str__(self) -> str:
        """Return ``10.0.0.1:80`` or ``[fd00::1]:80``."""
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{host}:{self.port}"


class PortalKind(enum.Enum):
    """Of what a portal's address is."""

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    LOAD_BALANCER_IP = "load-balancer IP"
    NODE_PORT = "node port"


@dataclass(frozen=True, slots=True)
class Portal:
    """An address and a port that clients speak to.

    ``address`` is ``None`` for a node port: any address of this machine. ``sources`` are the only
    networks that may use a load balancer's (``loadBalancerSourceRanges``); ``None`` is everyone.
    """

    kind: PortalKind
    address: Address | None
    port: int
    sources: tuple[Network, ...] | None = None

    def __str__(self) -> str:
        """Return ``node port 30080`` or ``cluster IP 10.96.0.1 port 80``."""
        where = "" if self.address is None else f" {self.address} port"
        return f"{self.kind.value}{where} {self.port}"

    @property
    def is_external(self) -> bool:
        """Whether it is for clients from outside of the cluster."""
        return self.kind is not PortalKind.CLUSTER_IP


class Scope(enum.Enum):
    """Whose portals a virtual service has."""

    ALL = "all"
    """Those within the cluster, and those from outside, since both have the same endpoints."""
    INTERNAL = "internal"
    EXTERNAL = "external"
    CLUSTER = "cluster"
    """None: it has all endpoints, for clients within the cluster that speak to portals from outside
    where both of the others are for endpoints of this node alone."""


@dataclass(frozen=True, slots=True)
class Key:
    """What stays of a virtual service while everything else of it may change."""

    name: ServicePortName
    version: int
    """Of IP: 4 or 6."""
    protocol: Protocol
    scope: Scope
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the hash once: a sync looks each of thousands up ten times."""
        found = hash((self.name, self.version, self.protocol, self.scope))
        object.__setattr__(self, "_hash", found)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        """Return it for logs."""
        scope = "" if self.scope is Scope.ALL else f" ({self.scope.value})"
        return f"{self.name} {self.protocol.value} IPv{self.version}{scope}"


class NobodyServes(enum.Enum):
    """What clients of a virtual service without endpoints get."""

    REFUSED = "refused"
    """At once: a reset by TCP, ICMP port unreachable by UDP."""
    DROPPED = "dropped"
    """Nothing: with ``externalTrafficPolicy: Local`` another node serves, and a load balancer is to
    find that out (KEP-1669)."""


@dataclass(frozen=True, slots=True)
class VirtualService:
    """Portals with the endpoints that serve them here, in the order of :class:`Endpoint`.

    ``endpoints`` are those that policies leave: nothing more is to be chosen but one of them.
    ``local`` are those of them that are on this node, or do not say where they are. ``affinity``
    are the seconds for which a client keeps its endpoint after its last connection, ``None`` where
    it need not. ``proxy_protocol`` is the version of the PROXY protocol that endpoints are told the
    client by, 0 for none; ``least_connections`` chooses the endpoint with the fewest, in place of
    one after the other.
    """

    key: Key
    portals: tuple[Portal, ...]
    endpoints: tuple[Endpoint, ...]
    local: frozenset[Endpoint] = frozenset()
    affinity: float | None = None
    proxy_protocol: int = 0
    least_connections: bool = False
    nobody_serves: NobodyServes = NobodyServes.REFUSED
    keeps_source: bool = False
    """``externalTrafficPolicy: Local``: in kernel mode the client's address is not replaced."""


@dataclass(frozen=True, slots=True)
class HealthCheckNodePort:
    """What ``port`` answers about a Service: how many endpoints of it are on this node."""

    port: int
    namespace: str
    name: str
    local_endpoints: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What of the objects cannot be served, and why; all else of them is."""

    what: str
    """The object or its port: ``namespace/name:port``, or ``endpointslice namespace/name``."""
    text: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What desired state depends on of this node.

    ``addresses`` are all of this machine, and ``versions`` those of IP that it has at all: by
    another one nobody can be a client. By those that are ``unnumbered`` some may come by a link
    that has no address. ``node_port_networks`` are those whose addresses serve node ports
    (:func:`has_node_ports`). ``eligible`` is whether load balancers should send here:
    the Node is not being deleted, and has not the autoscaler's taint. ``loopback`` is whether
    nobody but programs of this machine are clients, to whom loopback addresses are open anyway.
    """

    name: str
    zone: str = ""
    addresses: frozenset[Address] = frozenset()
    versions: tuple[int, ...] = (4, 6)
    unnumbered: frozenset[int] = frozenset()
    node_port_networks: tuple[Network, ...] = ()
    eligible: bool = True
    loopback: bool = False


def has_node_ports(address: Address, networks: Iterable[Network]) -> bool:
    """Return whether an address of this machine serves node ports: one in a network of these.

    Where none of them is of its family, all addresses of that do.
    """
    its = [each for each in networks if each.version == address.version]
    return not its or any(address in each for each in its)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All that is to be served.

    ``triggered`` are the times, in seconds since 1970, of what has led to the changes of endpoints
    since the state before, as far as they say so.
    """

    services: Mapping[Key, VirtualService] = field(default_factory=dict)
    health_checks: Mapping[int, HealthCheckNodePort] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    triggered: tuple[float, ...] = field(default=(), compare=False)
