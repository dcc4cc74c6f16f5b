"""Derives the servers' addresses for agents from objects of the API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Any

from twisted.logger import Logger

from yurttunnel.agent.routes import Location
from yurttunnel.cluster.fields import mapping, objects, text, texts
from yurttunnel.cluster.services import EXTERNAL_ADDRESS, PORT_NAME
from yurttunnel.kube.resources import Object
from yurttunnel.ops import flags

CLOUD_NODES = "openyurt.io/is-edge-worker=false"
"""The label of nodes that run servers, and whose NodePorts agents can reach."""

MAX_LOCATIONS = 64
"""The maximum number of addresses that are dialed: no cluster needs more."""

MAX_PER_FAMILY = 2
"""The number of addresses of a node that are dialed, per IP version: one and a spare one."""

_MAX_REPORTED = 16
"""The maximum number of addresses of one type that are read from a node."""

log = Logger()


class NoAddresses(Exception):
    """There is no address; the text says what is missing, and what to do."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The stored facts of the servers' service.

    ``port`` and ``node_port`` are those of the port ``tcp``, ``None`` without it. ``ingress`` are
    the addresses and host names of a load balancer.
    """

    name: str
    type: str
    annotation: str
    port: int | None
    node_port: int | None
    ingress: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """The stored facts of an EndpointSlice: ready addresses, and their common port ``tcp``."""

    addresses: tuple[str, ...]
    port: int | None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The stored facts of a node: its addresses for agents, the best type only."""

    addresses: tuple[str, ...]


def service_facts(service: Object) -> ServiceFacts:
    """Parse a Service (Kubernetes type ``core/v1 Service``)."""
    metadata, spec = mapping(service.get("metadata")), mapping(service.get("spec"))
    balancer = mapping(mapping(service.get("status")).get("loadBalancer"))
    port = _agent_port(spec)
    return ServiceFacts(
        name=f"{text(metadata.get('namespace'))}/{text(metadata.get('name'))}",
        type=text(spec.get("type")) or "ClusterIP",
        annotation=text(mapping(metadata.get("annotations")).get(EXTERNAL_ADDRESS)),
        port=_port(port.get("port")),
        node_port=_port(port.get("nodePort")),
        ingress=tuple(
            host
            for ingress in objects(balancer.get("ingress"))
            for host in (text(ingress.get("ip")), text(ingress.get("hostname")))
            if host
        ),
    )


def slice_facts(endpoint_slice: Object) -> SliceFacts:
    """Parse an EndpointSlice (``discovery.k8s.io/v1 EndpointSlice``)."""
    return SliceFacts(
        addresses=tuple(
            address
            for endpoint in objects(endpoint_slice.get("endpoints"))
            # Unknown is to be interpreted as ready (EndpointConditions.ready).
            if mapping(endpoint.get("conditions")).get("ready") is not False
            for address in texts(endpoint.get("addresses"))
        ),
        port=_port(_agent_port(endpoint_slice).get("port")),
    )


def node_facts(node: Object) -> NodeFacts:
    """Parse a Node: its ExternalIPs, or else its InternalIPs.

    Edge nodes are in other networks and usually cannot reach InternalIPs.
    """
    addresses = [
        (text(each.get("type")), text(each.get("address")))
        for each in objects(mapping(node.get("status")).get("addresses"))
    ]
    for desired in ("ExternalIP", "InternalIP"):
        chosen = (address for kind, address in addresses if kind == desired and address)
        kept = tuple(islice(chosen, _MAX_REPORTED))
        if kept:
            return NodeFacts(kept)
    return NodeFacts(())


def locations(
    service: ServiceFacts, nodes: Collection[NodeFacts], slices: Collection[SliceFacts]
) -> tuple[Location, ...]:
    """Return the servers' addresses in a deterministic order.

    ``nodes`` are the cloud nodes and ``slices`` those of the service; they are used only if
    :func:`needs_nodes` and :func:`needs_slices` return true. Raises :class:`NoAddresses`.
    """
    if service.type == "LoadBalancer":
        found = _balancer(service)
    elif service.type in ("NodePort", "ClusterIP") and service.annotation:
        found = _annotated(service)
    elif service.type == "NodePort":
        found = _node_ports(service, nodes)
    elif service.type == "ClusterIP":
        found = _endpoints(service, slices)
    else:
        raise NoAddresses(
            f"service {service.name} is of type {service.type}: make it LoadBalancer, NodePort or"
            f" ClusterIP, or start the agent with --tunnelserver-addr"
        )
    if not found:
        raise NoAddresses(
            f"service {service.name} has no address that can be dialed: the log says why"
        )
    return tuple(sorted(set(found)))[:MAX_LOCATIONS]


def needs_nodes(service: ServiceFacts) -> bool:
    """Return whether the addresses of nodes are needed."""
    return service.type == "NodePort" and not service.annotation


def needs_slices(service: ServiceFacts) -> bool:
    """Return whether the EndpointSlices of the service are needed."""
    return service.type == "ClusterIP" and not service.annotation


def _balancer(service: ServiceFacts) -> list[Location]:
    if not service.ingress:
        raise NoAddresses(
            f"service {service.name} has no address of its load balancer yet: see its events, or"
            " start the agent with --tunnelserver-addr"
        )
    return _dialable(service, service.ingress, _required(service, service.port, "port"))


def _annotated(service: ServiceFacts) -> list[Location]:
    found = []
    bad = "it names no host"
    for entry in filter(str.strip, service.annotation.split(",")):
        try:
            host, port = flags.host_port(entry, 0)
        except ValueError as reason:
            bad = str(reason)
            log.warn(
                "annotation {annotation} of service {service}: {reason}",
                annotation=EXTERNAL_ADDRESS,
                service=service.name,
                reason=bad,
            )
            continue
        found.append((host, port or _required(service, service.port, "port")))
    if not found:
        raise NoAddresses(
            f"annotation {EXTERNAL_ADDRESS} of service {service.name}: {bad}: write HOST:PORT, or"
            " remove it"
        )
    return found


def _node_ports(service: ServiceFacts, nodes: Collection[NodeFacts]) -> list[Location]:
    port = _required(service, service.node_port, "nodePort")
    if not any(node.addresses for node in nodes):
        raise NoAddresses(
            f"service {service.name} is of type NodePort, but no node with the label"
            f" {CLOUD_NODES} has an address: label the cloud nodes, or give the service the"
            f" annotation {EXTERNAL_ADDRESS}"
        )
    in_order = sorted(node.addresses for node in nodes)
    per_node = [_limit_per_family(_dialable(service, each, port)) for each in in_order]
    # Round robin: no node displaces others, however many addresses it reports.
    turns = chain.from_iterable(zip_longest(*per_node))
    found = dict.fromkeys(location for location in turns if location is not None)
    return list(islice(found, MAX_LOCATIONS))


def _limit_per_family(found: Sequence[Location]) -> list[Location]:
    six = [location for location in found if ":" in location[0]]
    four = [location for location in found if ":" not in location[0]]
    return [*four[:MAX_PER_FAMILY], *six[:MAX_PER_FAMILY]]


def _endpoints(service: ServiceFacts, slices: Collection[SliceFacts]) -> list[Location]:
    found = [
        location
        for each in slices
        if each.port is not None
        for location in _dialable(service, each.addresses, each.port)
    ]
    if not found:
        raise NoAddresses(
            f"service {service.name} has no ready endpoint with a port named {PORT_NAME}: see"
            " whether the servers are ready, or give the service the annotation"
            f" {EXTERNAL_ADDRESS}"
        )
    return found


def _required(service: ServiceFacts, port: int | None, field: str) -> int:
    if port is None:
        raise NoAddresses(
            f"service {service.name} has no port named {PORT_NAME} with a {field}: add it, or"
            " start the agent with --tunnelserver-addr"
        )
    return port


def _dialable(service: ServiceFacts, hosts: Sequence[str], port: int) -> list[Location]:
    """Return the locations of valid names and addresses; others are logged and ignored."""
    found = []
    for host in hosts:
        try:
            found.append((flags.host(host), port))
        except ValueError as reason:
            log.warn("service {service}: {reason}", service=service.name, reason=str(reason))
    return found


def _agent_port(ported: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the port for agents in a Service's ``spec``, or in an EndpointSlice."""
    named = (each for each in objects(ported.get("ports")) if each.get("name") == PORT_NAME)
    return next(named, {})


def _port(value: Any) -> int | None:
    usable = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535
    return value if usable else None
