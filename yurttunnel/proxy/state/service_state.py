"""The state of one Service, independent of the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from yurttunnel.proxy.state.endpoint_slices import Condition, EndpointSlice, SliceEndpoint
from yurttunnel.proxy.state.parsing import Problems
from yurttunnel.proxy.state.policies import Candidates, cluster_endpoints, local_endpoints
from yurttunnel.proxy.state.service_ports import ServicePort
from yurttunnel.proxy.state.services import Service
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Endpoint,
    HealthCheckNodePort,
    Key,
    Network,
    NoEndpointsAction,
    Portal,
    PortalKind,
    Problem,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)

Claim = tuple[Protocol, Address | None, int]
"""What only one Service can have: a port of an address, or, with ``None``, of this machine."""

Loop = tuple[Protocol, Endpoint]
"""An endpoint that is a portal of the same protocol."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The facts of this node on which the selection of endpoints depends.

    ``link_local`` are the link-local addresses of this machine: on another one they would mean
    something else. ``loopback`` is whether endpoints may be loopback addresses. ``versions`` are
    the versions of IP that this machine has.
    """

    node: str
    zone: str
    link_local: frozenset[Address] = frozenset()
    loopback: bool = False
    versions: tuple[int, ...] = (4, 6)

    def rejection(self, address: Address) -> str | None:
        """Return why an endpoint may not have ``address`` here, ``None`` if it may."""
        if address.is_link_local and address not in self.link_local:
            return "has a link-local address that is not one of this machine"
        if address.is_loopback and not self.loopback:
            return "has a loopback address, which would expose local services of this machine"
        return None


@dataclass(frozen=True, slots=True)
class LoopInputs:
    """The portals and endpoints of one Service, of one protocol.

    ``endpoints`` are all that serve it, with the ports ``endpoint_ports``. None of them may be in
    ``virtual``, the portals of cluster IPs, or have one of this machine's ``node_ports``.
    ``external`` are the portals of external and load-balancer IPs.
    """

    virtual: frozenset[Endpoint] = frozenset()
    external: frozenset[Endpoint] = frozenset()
    node_ports: frozenset[int] = frozenset()
    endpoints: frozenset[Endpoint] = frozenset()
    endpoint_ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of one Service.

    ``claims`` are those of its portals and of its ``healthCheckNodePort``, with its name.
    """

    services: dict[Key, VirtualService]
    health_check: HealthCheckNodePort | None
    problems: tuple[Problem, ...]
    claims: dict[Claim, str]
    loop_inputs: Mapping[Protocol, LoopInputs]


def service_state(
    service: Service,
    slices: Iterable[EndpointSlice],
    node_context: NodeContext,
    loops: Collection[Loop] = (),
) -> ServiceState:
    """Return what is to be served of ``service``, whose ``slices`` may be in any order.

    Endpoints in ``loops`` are portals, and are left out.
    """
    slices = sorted(slices, key=lambda each: each.name)
    problems = Problems(str(service))
    services: dict[Key, VirtualService] = {}
    endpoints: dict[Protocol, set[Endpoint]] = {each.protocol: set() for each in service.ports}
    families = dict.fromkeys(each.version for each in service.cluster_ips)
    versions = [version for version in families if version in node_context.versions]
    for port in service.ports:
        name = ServicePortName(service.namespace, service.name, port.name)
        own_loops = [endpoint for protocol, endpoint in loops if protocol is port.protocol]
        for version in versions:
            candidates = _candidates(service, port, version, slices)
            _remove_unusable(own_loops, node_context, candidates, str(name), problems)
            endpoints[port.protocol].update(candidates)
            for virtual_service in _virtual_services(
                service, port, name, version, candidates, node_context
            ):
                services[virtual_service.key] = virtual_service
    portals = [
        (key.protocol, portal)
        for key, virtual_service in services.items()
        for portal in virtual_service.portals
    ]
    health_check = _health_check(service, slices, node_context)
    of_slices = (problem for each in slices for problem in each.problems)
    return ServiceState(
        services=services,
        health_check=health_check,
        problems=(*service.problems, *of_slices, *problems.all()),
        claims=_claims(str(service), portals, health_check),
        loop_inputs={
            protocol: _loop_inputs([portal for its, portal in portals if its is protocol], found)
            for protocol, found in endpoints.items()
        },
    )


def _loop_inputs(portals: Collection[Portal], endpoints: Collection[Endpoint]) -> LoopInputs:
    return LoopInputs(
        virtual=_portal_endpoints(portals, PortalKind.CLUSTER_IP),
        external=_portal_endpoints(portals, PortalKind.EXTERNAL_IP, PortalKind.LOAD_BALANCER_IP),
        node_ports=frozenset(portal.port for portal in portals if portal.address is None),
        endpoints=frozenset(endpoints),
        endpoint_ports=frozenset(each.port for each in endpoints),
    )


def _portal_endpoints(portals: Iterable[Portal], *kinds: PortalKind) -> frozenset[Endpoint]:
    return frozenset(
        Endpoint(portal.address, portal.port)
        for portal in portals
        if portal.address is not None and portal.kind in kinds
    )


def _claims(
    owner: str, portals: Iterable[tuple[Protocol, Portal]], health_check: HealthCheckNodePort | None
) -> dict[Claim, str]:
    found: dict[Claim, str] = {
        (protocol, portal.address, portal.port): owner for protocol, portal in portals
    }
    if health_check is not None:
        found[Protocol.TCP, None, health_check.port] = owner
    return found


def _remove_unusable(
    loops: Collection[Endpoint],
    node_context: NodeContext,
    candidates: dict[Endpoint, SliceEndpoint],
    name: str,
    problems: Problems,
) -> None:
    for endpoint in list(candidates):
        if endpoint in loops:
            why: str | None = "is a portal of a Service, which would be a loop"
        else:
            why = node_context.rejection(endpoint.address)
        if why is None:
            continue
        del candidates[endpoint]
        problems.add(f"the endpoint {endpoint} {why}: it is not used", name)


def _candidates(
    service: Service, port: ServicePort, version: int, slices: Sequence[EndpointSlice]
) -> dict[Endpoint, SliceEndpoint]:
    """Return all endpoints of a port.

    An endpoint that moves to another slice may be in both for a time; its best condition counts.
    """
    found: dict[Endpoint, SliceEndpoint] = {}
    for each in slices:
        if each.version != version:
            continue
        for slice_port in each.ports:
            if slice_port.name != port.name or slice_port.protocol is not port.protocol:
                continue
            for one in each.endpoints:
                endpoint = Endpoint(one.address, slice_port.port)
                known = found.get(endpoint)
                if known is None or one.condition.is_better_than(known.condition):
                    found[endpoint] = one
    if service.publish_not_ready:
        return {
            endpoint: replace(one, condition=Condition.READY) for endpoint, one in found.items()
        }
    return found


def _virtual_services(
    service: Service,
    port: ServicePort,
    name: ServicePortName,
    version: int,
    candidates: Candidates,
    node_context: NodeContext,
) -> Iterator[VirtualService]:
    """Yield the virtual services of a port for one address family."""
    portals = list(_portals(service, port, version, candidates))
    internal = tuple(portal for portal in portals if not portal.is_external)
    external = tuple(portal for portal in portals if portal.is_external)
    cluster = cluster_endpoints(
        candidates, service.distribution, node_context.node, node_context.zone
    )

    def virtual_service(
        scope: Scope, portals: tuple[Portal, ...], is_local: bool, keeps_source: bool
    ) -> VirtualService:
        endpoints = local_endpoints(candidates, node_context.node) if is_local else cluster
        endpoints.sort(key=lambda each: (int(each.address), each.port))
        is_dropped = keeps_source and cluster
        # Slices written by hand may not name the node: such an endpoint may be here.
        here = ("", node_context.node)
        return VirtualService(
            key=Key(name, version, port.protocol, scope),
            portals=portals,
            endpoints=tuple(endpoints),
            local=frozenset(each for each in endpoints if candidates[each].node in here),
            affinity=service.affinity,
            proxy_protocol=service.proxy_protocol if port.protocol is Protocol.TCP else 0,
            least_connections=service.least_connections,
            port=port.port,
            no_endpoints_action=NoEndpointsAction.DROPPED
            if is_dropped
            else NoEndpointsAction.REFUSED,
            keeps_source=keeps_source,
        )

    if external and (service.internal_local or service.external_local):
        yield virtual_service(Scope.INTERNAL, internal, service.internal_local, False)
        yield virtual_service(
            Scope.EXTERNAL, external, service.external_local, service.external_local
        )
        if service.internal_local and service.external_local:
            yield virtual_service(Scope.CLUSTER, (), False, False)
    else:
        yield virtual_service(Scope.ALL, (*internal, *external), service.internal_local, False)


def _portals(
    service: Service, port: ServicePort, version: int, candidates: Candidates
) -> Iterator[Portal]:
    """Yield the portals of a port for one family, in the order in which they are opened."""
    for address in _of_version(version, service.cluster_ips):
        yield Portal(PortalKind.CLUSTER_IP, address, port.port)
    # An endpoint that has an external address with the same port is reached without a portal, which
    # would lead it to itself.
    reachable = {
        *service.cluster_ips,
        *(each.address for each in candidates if each.port == port.port),
    }
    for address in _of_version(version, service.external_ips):
        if address not in reachable and address not in service.load_balancer_ips:
            yield Portal(PortalKind.EXTERNAL_IP, address, port.port)
    sources = _sources(service, version)
    for address in _of_version(version, service.load_balancer_ips):
        if address not in reachable:
            yield Portal(PortalKind.LOAD_BALANCER_IP, address, port.port, sources)
    if port.node_port:
        yield Portal(PortalKind.NODE_PORT, None, port.node_port)


def _of_version(version: int, addresses: Iterable[Address]) -> Iterator[Address]:
    return (address for address in addresses if address.version == version)


def _sources(service: Service, version: int) -> tuple[Network, ...] | None:
    """Return the networks of one family; ``None`` if they include all addresses."""
    if service.sources is None:
        return None
    networks = tuple(each for each in service.sources if each.version == version)
    return None if any(not each.prefixlen for each in networks) else networks


def _health_check(
    service: Service, slices: Iterable[EndpointSlice], node_context: NodeContext
) -> HealthCheckNodePort | None:
    """Return the health check for load balancers; terminating pods do not count (KEP-1669)."""
    if not service.health_check_node_port:
        return None
    here = {
        one.address
        for each in slices
        for one in each.endpoints
        if one.node == node_context.node
        and (one.condition is Condition.READY or service.publish_not_ready)
        and node_context.rejection(one.address) is None
    }
    # A pod has an address of each family.
    count = max(sum(address.version == version for address in here) for version in (4, 6))
    return HealthCheckNodePort(
        service.health_check_node_port, service.namespace, service.name, count
    )
