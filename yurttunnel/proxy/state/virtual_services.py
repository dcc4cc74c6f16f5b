"""Virtual services: the portals of one port of a Service, and the endpoints that serve them.

The terms are those of IPVS and of the first kube-proxy: clients connect to a *portal* (an address
and a port on which nothing listens), and are served by an *endpoint*.
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
    """The supported protocols; SCTP is not."""

    TCP = "TCP"
    UDP = "UDP"

    @property
    def number(self) -> int:
        """The number in IP headers (``IPPROTO_*``)."""
        return socket.IPPROTO_TCP if self is Protocol.TCP else socket.IPPROTO_UDP


@dataclass(frozen=True, slots=True, order=True)
class ServicePortName:
    """A port of a Service; ``port`` is its name, which may be empty if a Service has only one."""

    namespace: str
    name: str
    port: str

    def __str__(self) -> str:
        """Return it as in rules, logs and the status page: ``namespace/name:port``."""
        return f"{self.namespace}/{self.name}" + (f":{self.port}" if self.port else "")


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """The address and port of a pod, or of anything else that serves."""

    address: Address
    port: int

    def __str__(self) -> str:
        """Return ``10.0.0.1:80`` or ``[fd00::1]:80``."""
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{host}:{self.port}"


class PortalKind(enum.Enum):
    """The kind of a portal's address."""

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    LOAD_BALANCER_IP = "load-balancer IP"
    NODE_PORT = "node port"


@dataclass(frozen=True, slots=True)
class Portal:
    """An address and a port that clients connect to.

    ``address`` is ``None`` for a node port, which is at any address of this machine. ``sources``
    are the only networks that may use the portal of a load balancer (``loadBalancerSourceRanges``);
    ``None`` means all.
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
        """Whether it is for clients outside the cluster."""
        return self.kind is not PortalKind.CLUSTER_IP


class Scope(enum.Enum):
    """Which portals of a port a virtual service has."""

    ALL = "all"
    """All portals, because clients inside and outside the cluster have the same endpoints."""
    INTERNAL = "internal"
    EXTERNAL = "external"
    CLUSTER = "cluster"
    """None: it has all endpoints, for clients within the cluster that use external portals, if both
    of the others are restricted to endpoints of this node."""


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a virtual service, while everything else may change."""

    name: ServicePortName
    version: int
    """The version of IP: 4 or 6."""
    protocol: Protocol
    scope: Scope
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the hash once: a sync looks up each of thousands ten times."""
        found = hash((self.name, self.version, self.protocol, self.scope))
        object.__setattr__(self, "_hash", found)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        """Return it for logs."""
        scope = "" if self.scope is Scope.ALL else f" ({self.scope.value})"
        return f"{self.name} {self.protocol.value} IPv{self.version}{scope}"


class NoEndpointsAction(enum.Enum):
    """What happens to clients of a virtual service without endpoints."""

    REFUSED = "refused"
    """They are refused at once: by a reset for TCP, by ICMP port unreachable for UDP."""
    DROPPED = "dropped"
    """They get no answer: with ``externalTrafficPolicy: Local`` another node serves, and a load
    balancer should detect that (KEP-1669)."""


@dataclass(frozen=True, slots=True)
class VirtualService:
    """Portals with the endpoints that serve them on this node, in the order of :class:`Endpoint`.

    ``endpoints`` are those that the policies allow: only the load balancing remains to be done.
    ``local`` are those of them that are on this node, or whose node is not known. ``affinity`` is
    how many seconds a client keeps its endpoint after its last connection, ``None`` for no
    affinity. ``proxy_protocol`` is the version of the PROXY protocol for connections to endpoints,
    0 for none. ``least_connections`` selects the endpoint with the fewest connections, instead of
    round-robin. ``port`` is the number of the Service's port, which all its scopes have.
    """

    key: Key
    portals: tuple[Portal, ...]
    endpoints: tuple[Endpoint, ...]
    local: frozenset[Endpoint] = frozenset()
    affinity: float | None = None
    proxy_protocol: int = 0
    least_connections: bool = False
    port: int = 0
    no_endpoints_action: NoEndpointsAction = NoEndpointsAction.REFUSED
    keeps_source: bool = False
    """``externalTrafficPolicy: Local``: in kernel mode the client's address is not replaced."""


@dataclass(frozen=True, slots=True)
class HealthCheckNodePort:
    """What ``port`` reports about a Service: the number of its endpoints on this node."""

    port: int
    namespace: str
    name: str
    local_endpoints: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of an object that cannot be served, and why; the rest is served."""

    what: str
    """The object or its port: ``namespace/name:port``, or ``endpointslice namespace/name``."""
    text: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of this node on which the desired state depends.

    ``addresses`` are all of this machine, and ``versions`` are the versions of IP that it has: no
    client can use another one. ``unnumbered`` are the versions for which clients may come from a
    link without an address. ``node_port_networks`` are those whose addresses serve node ports
    (:func:`has_node_ports`). ``eligible`` is whether load balancers should send clients here: the
    Node is not being deleted, and does not have the autoscaler's taint. ``loopback`` is whether
    only programs of this machine can be clients, which can reach loopback addresses anyway.
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
    """Return whether an address of this machine serves node ports: whether it is in one of the
    networks.

    If there are no networks of its family, all its addresses do.
    """
    its = [each for each in networks if each.version == address.version]
    return not its or any(address in each for each in its)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The complete desired state.

    ``triggered`` are the times, in seconds since 1970, of the events that caused the changes of
    endpoints since the previous state, as far as they are known.
    """

    services: Mapping[Key, VirtualService] = field(default_factory=dict)
    health_checks: Mapping[int, HealthCheckNodePort] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    triggered: tuple[float, ...] = field(default=(), compare=False)
