"""The server's Services and the addresses of their endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

from yurttunnel.cluster.fields import mapping, objects, text, texts
from yurttunnel.http.authority import Address, BadAuthority, parse_address, strip_port
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import ENDPOINT_SLICES, SERVICES, Object

Kept = TypeVar("Kept")

SERVICE = "x-tunnel-server-svc"
"""The Service that agents dial."""

PORT_NAME = "tcp"
"""Its port for agents."""

INTERNAL_SERVICE = "x-tunnel-server-internal-svc"
"""The Service by which callers inside the cluster reach kubelets."""

EXTERNAL_ADDRESS = "x-tunnel-server-external-addr"
"""The annotation of the Service with the addresses at which agents reach it: ``host:port``, or
several separated by commas."""


class ServiceAddresses(NamedTuple):
    """The cached part of a Service.

    ``redirected`` are the other addresses that kube-proxy forwards to it, each with a port: those
    of its load balancer and its external addresses. ``node_ports`` are forwarded on every machine,
    each with its port of the Service. ``ingress`` are the addresses and names of its load balancer.
    ``external`` are the valid hosts in the annotation :data:`EXTERNAL_ADDRESS`, and
    ``has_external`` is whether the annotation exists.
    """

    type: str
    cluster_addresses: tuple[Address, ...]
    redirected: frozenset[tuple[Address, int]]
    node_ports: frozenset[tuple[int, int]]
    ingress: tuple[str, ...]
    external: tuple[str, ...]
    has_external: bool


def service_addresses(service: Object) -> ServiceAddresses:
    """Return the cached part of a ``Service`` (k8s.io/api core/v1 types.go)."""
    metadata, spec = mapping(service.get("metadata")), mapping(service.get("spec"))
    balancer = mapping(mapping(service.get("status")).get("loadBalancer"))
    annotation = text(mapping(metadata.get("annotations")).get(EXTERNAL_ADDRESS)).strip()
    cluster_addresses = dict.fromkeys((text(spec.get("clusterIP")), *texts(spec.get("clusterIPs"))))
    return ServiceAddresses(
        # The API always sets it.
        type=text(spec.get("type")) or "ClusterIP",
        # A headless Service has the word None there.
        cluster_addresses=tuple(
            address for each in cluster_addresses if (address := parse_address(each)) is not None
        ),
        redirected=frozenset(_redirected(spec, balancer)),
        node_ports=frozenset((node_port, port) for port, node_port in _ports(spec) if node_port),
        ingress=tuple(_ingress(balancer.get("ingress"))),
        external=tuple(_hosts(annotation)),
        has_external=bool(annotation),
    )


def _ingress(entries: object) -> Iterator[str]:
    for entry in objects(entries):
        for key in ("ip", "hostname"):
            if text(entry.get(key)):
                yield text(entry.get(key))


def _redirected(
    spec: Mapping[str, object], balancer: Mapping[str, object]
) -> Iterator[tuple[Address, int]]:
    ingress = (text(entry.get("ip")) for entry in objects(balancer.get("ingress")))
    for each in (*texts(spec.get("externalIPs")), *ingress):
        if (address := parse_address(each)) is not None:
            for port, _ in _ports(spec):
                yield address, port


def _ports(spec: Mapping[str, object]) -> Iterator[tuple[int, int]]:
    """Yield the ports of a Service with their node ports, 0 for none."""
    for entry in objects(spec.get("ports")):
        port, node_port = entry.get("port"), entry.get("nodePort")
        if isinstance(port, int):
            yield port, node_port if isinstance(node_port, int) else 0


def _hosts(annotation: str) -> Iterator[str]:
    for entry in annotation.split(","):
        with suppress(BadAuthority):
            yield strip_port(entry.strip())


def service_spec(namespace: str, name: str) -> InformerSpec[ServiceAddresses]:
    """Return the specification for one Service."""
    return InformerSpec(SERVICES, service_addresses, namespace=namespace, name=name)


class ClusterAddresses:
    """The cluster addresses of the server's Services, kept up to date by ``informers``.

    kube-proxy forwards connections to them to servers; they are never addresses of a node.
    ``namespace`` is the server's.
    """

    def __init__(self, informers: IInformers, namespace: str) -> None:
        self.addresses: frozenset[Address] = frozenset()
        self._node_ports: dict[int, int] = {}
        self._redirected: frozenset[tuple[Address, int]] = frozenset()
        self.on_changed: list[Callable[[], object]] = []
        """Callbacks for changes of the addresses."""
        self._informers = [
            informers.informer(service_spec(namespace, name))
            for name in (SERVICE, INTERNAL_SERVICE)
        ]
        for informer in self._informers:
            informer.add_handler(self._changed)

    @property
    def synced(self) -> bool:
        """Whether the addresses have been loaded once."""
        return all(informer.synced for informer in self._informers)

    def port_behind(self, address: Address, port: int) -> int | None:
        """Return the port of a Service to which kube-proxy forwards ``address`` and ``port``.

        ``None`` if it does not forward them to servers.
        """
        if address in self.addresses or (address, port) in self._redirected:
            return port
        return self._node_ports.get(port)

    def _changed(self, _old: object, _new: object) -> None:
        before = self.addresses
        services: list[ServiceAddresses] = [
            service for informer in self._informers for service in informer.values()
        ]
        self.addresses = frozenset(
            address for service in services for address in service.cluster_addresses
        )
        self._node_ports = dict(pair for service in services for pair in service.node_ports)
        self._redirected = frozenset(way for service in services for way in service.redirected)
        if self.addresses != before:
            for callback in self.on_changed:
                callback()


def server_name(namespace: str) -> str:
    """Return the DNS name in every server's certificate."""
    return f"{SERVICE}.{namespace}.svc"


def endpoint_hosts(endpoint_slice: Object) -> tuple[str, ...]:
    """Return the addresses and host names of an ``EndpointSlice`` (discovery/v1 types.go)."""
    return tuple(sorted(set(_endpoint_hosts(endpoint_slice))))


def _endpoint_hosts(endpoint_slice: Object) -> Iterator[str]:
    for endpoint in objects(endpoint_slice.get("endpoints")):
        yield from texts(endpoint.get("addresses"))
        if text(endpoint.get("hostname")):
            yield text(endpoint.get("hostname"))


def slices_spec(namespace: str, keep: Callable[[Object], Kept]) -> InformerSpec[Kept]:
    """Return the specification for the EndpointSlices of :data:`SERVICE`."""
    return InformerSpec(
        ENDPOINT_SLICES,
        keep,
        namespace=namespace,
        label_selector=f"kubernetes.io/service-name={SERVICE}",
    )
