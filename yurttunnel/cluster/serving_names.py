"""The names in the server's own serving certificate, which follow the state of the API.

====================================================  =============================================
source                                                names
====================================================  =============================================
flags                                                 ``--cert-ips``, ``--cert-dns-names``
constants                                             127.0.0.1 and ::1
Service ``x-tunnel-server-svc``, always               its four names in the cluster
the same, when it exists                              its cluster addresses
the same, type ``LoadBalancer``                       address or name of each ingress
the same, type ``ClusterIP`` or ``NodePort``          the hosts in the annotation
                                                      ``x-tunnel-server-external-addr``
the same, type ``NodePort``                           addresses of the cloud nodes, whose label
                                                      ``is-edge-worker`` is ``false``
its EndpointSlices                                    all addresses, and host names
Service ``x-tunnel-server-internal-svc``, if any      its four names, and its cluster addresses
====================================================  =============================================

A source that exists but is empty at present, such as a load balancer between two addresses, keeps
the last names that it had in this process. When a source is removed, for example a Service is
deleted or changes its type, its names are removed.

Endpoints count before they are ready: a server needs the certificate to become ready, and another
one would have to be issued at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import zip_longest

from twisted.logger import Logger

from yurttunnel.cluster.nodes import NODES_SPEC, Node
from yurttunnel.cluster.services import (
    INTERNAL_SERVICE,
    SERVICE,
    ServiceAddresses,
    endpoint_hosts,
    service_spec,
    slices_spec,
)
from yurttunnel.http.authority import Address, BadAuthority, canonical_host
from yurttunnel.kube.informer import once_synced
from yurttunnel.kube.interfaces import IInformer, IInformers

log = Logger()

_ENDPOINTS = "endpoints"

MAX_PER_NODE = 16
"""The maximum number of addresses per cloud node, which may report any number."""

MAX_NODES_BYTES = 48 * 1024
"""Bytes of the addresses of all cloud nodes, enough for a thousand of them with their names.
Clients reject certificates beyond 100 kB (``SSL_CTX_set_max_cert_list``)."""

_DIALED = ("ExternalIP", "InternalIP")
"""The address types of nodes that agents dial."""


@dataclass(frozen=True, slots=True)
class ServingSANs:
    """Subject alternative names; equal ones need no new certificate.

    DNS names are in lower case and without final dot.
    """

    dns_names: frozenset[str]
    addresses: frozenset[Address]


class ServingNames:
    """Collects the names from ``informers`` and the values of the flags.

    ``namespace`` is the server's; ``cluster_domain`` is the domain of the cluster's DNS
    (``clusterDomain`` of ``KubeletConfiguration``).
    """

    def __init__(
        self,
        informers: IInformers,
        namespace: str,
        addresses: Iterable[Address] = (),
        dns_names: Iterable[str] = (),
        cluster_domain: str = "cluster.local",
    ) -> None:
        self._namespace = namespace
        self._domain = cluster_domain
        self._flags: tuple[Address | str, ...] = (*addresses, *dns_names)
        self.own_names = frozenset(
            name.lower().removesuffix(".")
            for name in (*dns_names, *self._names_of(SERVICE), *self._names_of(INTERNAL_SERVICE))
        )
        """The server's DNS names whatever the API contains; no node may have them."""
        self._service = informers.informer(service_spec(namespace, SERVICE))
        self._internal = informers.informer(service_spec(namespace, INTERNAL_SERVICE))
        self._endpoints = informers.informer(slices_spec(namespace, endpoint_hosts))
        self._nodes = informers.informer(NODES_SPEC)
        # Only the cloud nodes, which are few, while all nodes may be thousands.
        self._cloud_nodes: dict[str, Node] = {}
        # The last names of each source that can be empty temporarily.
        self._kept: dict[str, frozenset[Address | str]] = {}
        self._callbacks: list[Callable[[], object]] = []
        self._current: ServingSANs | None = None
        self._warnings: tuple[str, ...] = ()
        for informer, changed in (
            (self._service, self._changed),
            (self._internal, self._changed),
            (self._endpoints, self._changed),
            (self._nodes, self._node_changed),
        ):
            informer.add_handler(changed)
            once_synced(informer, self._update)

    def current(self) -> ServingSANs | None:
        """Return the names; ``None`` until all sources have been loaded."""
        return self._current

    def problem(self) -> str | None:
        """Return, for ``/readyz``, why there are no names yet."""
        if self._current is not None:
            return None
        missing = ", ".join(_described(informer) for informer in self._missing())
        return f"the names for the serving certificate wait for the API: {missing}"

    def warning(self) -> str | None:
        """Return which sources lack names, so that :meth:`current` lacks them."""
        return "; ".join(self._warnings) or None

    def on_change(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` when :meth:`current` changes.

        The returned function removes the callback.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _missing(self) -> list[IInformer]:
        needed = (self._service, self._internal, self._endpoints, self._nodes)
        return [informer for informer in needed if not informer.synced]

    def _changed(self, _old: object, _new: object) -> None:
        self._update()

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        former = self._cloud_nodes.pop(old.name, None) if old is not None else None
        if new is not None and new.cloud:
            self._cloud_nodes[new.name] = new
        if former is not None or (new is not None and new.cloud):
            self._update()

    def _update(self) -> None:
        if self._missing():
            return
        warnings: list[str] = []
        found: set[Address | str] = set()
        for text in self._hosts(warnings):
            try:
                found.add(_canonical(text) if isinstance(text, str) else text)
            except BadAuthority as error:
                warnings.append(f"{error}, so it is left out of the serving certificate")
        current = ServingSANs(
            frozenset(each for each in found if isinstance(each, str)),
            frozenset(each for each in found if not isinstance(each, str)),
        )
        self._log_warnings(tuple(warnings))
        if current == self._current:
            return
        self._current = current
        for callback in list(self._callbacks):
            callback()

    def _log_warnings(self, warnings: tuple[str, ...]) -> None:
        former, self._warnings = self._warnings, warnings
        for warning in warnings:
            if warning not in former:
                log.warn("{text}", text=warning)

    def _hosts(self, warnings: list[str]) -> Iterator[Address | str]:
        yield from self._flags
        yield from (ip_address("127.0.0.1"), ip_address("::1"))
        yield from self._names_of(SERVICE)
        service: ServiceAddresses | None = self._service.get(SERVICE, self._namespace)
        if service is None:
            self._kept.clear()
            warnings.append(
                f"there is no Service {self._namespace}/{SERVICE}: the serving certificate has"
                " none of its addresses, so give those that agents dial by --cert-ips and"
                " --cert-dns-names, or create it"
            )
        else:
            yield from service.cluster_addresses
            yield from self._outside(service, warnings)
            yield from self._last_known(_ENDPOINTS, self._endpoint_hosts())
        internal: ServiceAddresses | None = self._internal.get(INTERNAL_SERVICE, self._namespace)
        if internal is not None:
            yield from self._names_of(INTERNAL_SERVICE)
            yield from internal.cluster_addresses

    def _names_of(self, service: str) -> Iterator[str]:
        qualified = f"{service}.{self._namespace}"
        yield from (service, qualified, f"{qualified}.svc", f"{qualified}.svc.{self._domain}")

    def _endpoint_hosts(self) -> Iterator[str]:
        for hosts in self._endpoints.values():
            yield from hosts

    def _outside(self, service: ServiceAddresses, warnings: list[str]) -> frozenset[Address | str]:
        """Return the names by which agents reach the Service, which depend on its type."""
        for source in self._kept.keys() - {_ENDPOINTS, service.type}:
            del self._kept[source]
        hosts = self._hosts_outside(service, warnings)
        if hosts is None:
            self._kept.pop(service.type, None)
            return frozenset()
        if not hosts:
            warnings.append(
                f"Service {self._namespace}/{SERVICE} of type {service.type}"
                f" {_MISSING.get(service.type, _UNKNOWN_TYPE)}; the serving certificate keeps the"
                " addresses that it gave last, if any"
            )
        return self._last_known(service.type, hosts)

    def _hosts_outside(
        self, service: ServiceAddresses, warnings: list[str]
    ) -> frozenset[str] | None:
        """Return the Service's current names, ``None`` if its type does not require any."""
        match service.type:
            case "LoadBalancer":
                return frozenset(service.ingress)
            case "NodePort":
                return self._of_cloud_nodes(warnings) | frozenset(service.external)
            case "ClusterIP":
                return frozenset(service.external) if service.has_external else None
            case _:
                return frozenset()

    def _of_cloud_nodes(self, warnings: list[str]) -> frozenset[str]:
        """Return the addresses of cloud nodes, within limits that no single node can exhaust."""
        found: set[str] = set()
        size = 0
        for host in _round_robin(self._cloud_nodes):
            if host in found:
                continue
            size += len(host)
            if size > MAX_NODES_BYTES:
                warnings.append(
                    f"the cloud nodes report addresses of more than {MAX_NODES_BYTES >> 10} KiB,"
                    " and the serving certificate has no more of them: look for nodes that report"
                    " too many; what agents dial may be given by --cert-ips, too"
                )
                break
            found.add(host)
        return frozenset(found)

    def _last_known(self, source: str, hosts: Iterable[Address | str]) -> frozenset[Address | str]:
        """Return ``hosts``, or if it is empty the last names of the same source."""
        given = frozenset(hosts)
        if given:
            self._kept[source] = given
        return self._kept.get(source, frozenset())


_MISSING = {
    "LoadBalancer": "has no address from its load balancer yet",
    "NodePort": "needs cloud nodes, and no node has the label openyurt.io/is-edge-worker=false",
    "ClusterIP": (
        "has an annotation x-tunnel-server-external-addr that is not host:port, as"
        " tunnel.example:10262"
    ),
}
"""The warnings for Services that should have addresses but have none, by type."""

_UNKNOWN_TYPE = "leads no agent to the server: make it LoadBalancer, NodePort or ClusterIP"


def _round_robin(nodes: Mapping[str, Node]) -> Iterator[str]:
    """Yield the first address of each node, then the second ones; dialed types come first."""
    of_each = [
        sorted(nodes[name].addresses, key=lambda address: address[0] not in _DIALED)[:MAX_PER_NODE]
        for name in sorted(nodes)
    ]
    for turn in zip_longest(*of_each):
        yield from (address[1] for address in turn if address is not None)


def _canonical(text: str) -> Address | str:
    """Return the canonical form; wildcards, which only flags contain, are valid in certificates."""
    wildcard, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    host = canonical_host(name)
    return f"{wildcard}{host}" if wildcard else host


def _described(informer: IInformer) -> str:
    spec = informer.spec
    return f"{spec.resource.plural} {spec.name}" if spec.name else str(spec.resource.plural)
