"""The nodes of the cluster, indexed by name and by every address in the API."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from sys import intern
from typing import NamedTuple

from twisted.logger import Logger

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.http.authority import (
    Address,
    BadAuthority,
    canonical_host,
    is_machine_specific,
    parse_address,
)
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import NODES, Object
from yurttunnel.metrics import Metric, gauge
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT

LABEL_PREFIXES = ("openyurt.io", "alibabacloud.com")
"""The prefixes of the labels of edge nodes: OpenYurt's own, and that of OpenYurt 0.2 and 0.3."""

_EDGE_WORKER = tuple(f"{prefix}/is-edge-worker" for prefix in LABEL_PREFIXES)
_TUNNEL_CLIENT = tuple(f"{prefix}/edge-enable-reverseTunnel-client" for prefix in LABEL_PREFIXES)

MAX_ADDRESSES = 64
"""The maximum number of addresses per node; its own kubelet reports any number."""

MAX_ADDRESS = 253
"""Characters of an address that is kept: the limit of a name (RFC 1123 section 2.1)."""

log = Logger()


class Node(NamedTuple):
    """The cached part of a node, without fields that change with every heartbeat.

    ``edge`` is whether the labels state that the tunnel reaches the node, ``cloud`` whether they
    state that it does not (``is-edge-worker`` is ``false``, not just absent). ``addresses`` are
    pairs of type and address from ``status.addresses``, in its order and within limits.
    """

    name: str
    addresses: tuple[tuple[str, str], ...] = ()
    kubelet_port: int = KUBELET_PORT
    edge: bool = False
    cloud: bool = False
    ready: bool = False

    def internal(self) -> Iterator[Address]:
        """Yield the addresses of type ``InternalIP``."""
        for kind, address in self.addresses:
            if kind == "InternalIP" and (parsed := parse_address(address)) is not None:
                yield parsed

    def hosts(self) -> Iterator[Address | str]:
        """Yield its name and all its addresses in canonical form."""
        for host in (self.name, *(address for _, address in self.addresses)):
            try:
                canonical = canonical_host(host)
            except BadAuthority:
                # No request can contain it.
                continue
            # A machine whose host name was never set reports localhost.
            if not is_machine_specific(canonical):
                yield canonical

    def has_host(self, host: str) -> bool:
        """Return whether ``host`` is its name or one of its addresses, in any spelling."""
        try:
            desired = canonical_host(host)
        except BadAuthority:
            return False
        return desired in self.hosts()


def node_from(node: Object) -> Node:
    """Return the cached part of a ``Node`` (k8s.io/api core/v1 types.go)."""
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    labels = mapping(metadata.get("labels"))
    edge = any(labels.get(label) == "true" for label in (*_EDGE_WORKER, *_TUNNEL_CLIENT))
    return Node(
        name=intern(text(metadata.get("name"))),
        addresses=tuple(islice(_addresses(status), MAX_ADDRESSES)),
        kubelet_port=_kubelet_port(status),
        edge=edge,
        cloud=not edge and any(labels.get(label) == "false" for label in _EDGE_WORKER),
        ready=any(
            each.get("type") == "Ready" and each.get("status") == "True"
            for each in objects(status.get("conditions"))
        ),
    )


def _addresses(status: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for each in objects(status.get("addresses")):
        address = text(each.get("address"))
        if len(address) <= MAX_ADDRESS:
            yield intern(text(each.get("type"))), address


def _kubelet_port(status: Mapping[str, object]) -> int:
    """Read ``status.daemonEndpoints.kubeletEndpoint.Port`` (with a capital P)."""
    endpoint = mapping(mapping(status.get("daemonEndpoints")).get("kubeletEndpoint"))
    port = endpoint.get("Port")
    return port if isinstance(port, int) and 1 <= port <= 65535 else KUBELET_PORT


NODES_SPEC: InformerSpec[Node] = InformerSpec(NODES, node_from)


class Nodes:
    """All nodes, kept up to date by ``informers``.

    ``own_names`` are the DNS names of the server itself, in lower case and without final dot. They
    find no node, and no node can claim them.
    """

    def __init__(self, informers: IInformers, own_names: Collection[str] = ()) -> None:
        self.own_names = own_names
        self._informer = informers.informer(NODES_SPEC)
        # Nodes by name or address, and then by node name.
        self._by_host: dict[Address | str, dict[str, Node]] = {}
        self._informer.add_handler(self._changed)

    @property
    def synced(self) -> bool:
        """Whether all nodes have been loaded once."""
        return self._informer.synced

    def all(self) -> Collection[Node]:
        """Return all nodes."""
        nodes: Collection[Node] = self._informer.values()
        return nodes

    def add_handler(
        self, changed: Callable[[Node | None, Node | None], object]
    ) -> Callable[[], None]:
        """Call ``changed(old, new)`` for each change, as informers do."""
        ended: Callable[[], None] = self._informer.add_handler(changed)
        return ended

    def get(self, name: str) -> Node | None:
        """Return the node named ``name``."""
        node: Node | None = self._informer.get(name)
        return node

    def find(self, host: str) -> Collection[Node]:
        """Return the nodes that ``host``, a name or an address, may refer to.

        A name of the server refers to none. The name of a node refers only to that node. If an
        address is the name of one node and an address of others, all are returned, since packets
        for it may be for any of the others. Otherwise there may be several nodes, because sites
        behind NAT share private addresses or a public one; an ``InternalIP`` takes precedence over
        other types of addresses. Until all nodes are loaded, an address finds none, since other
        nodes that have it may be missing.
        """
        try:
            desired = canonical_host(host)
        except BadAuthority:
            return ()
        if desired in self.own_names:
            return ()
        if isinstance(desired, str) and (node := self.get(desired)) is not None:
            return (node,)
        if not self.synced:
            return ()
        found = self._by_host.get(desired, {}).values()
        if len(found) < 2:
            return found
        return [
            node
            for node in found
            if node.name == str(desired) or desired in set[object](node.internal())
        ] or found

    def with_address(self, address: Address) -> Collection[Node]:
        """Return all nodes that report ``address``, of any type."""
        return self._by_host.get(address, {}).values()

    def belongs_to_other_node(self, node: str, host: str) -> bool:
        """Return whether ``host``, a name or an address, belongs to others and not to ``node``.

        Others are nodes, and the server by its names. A node's name belongs only to that node,
        whatever names other nodes report.
        """
        try:
            desired = canonical_host(host)
        except BadAuthority:
            return False
        if str(desired) == node:
            # The API may not have sent this node yet.
            return False
        if desired in self.own_names or self.get(str(desired)) is not None:
            return True
        having = self._by_host.get(desired, {}) if self.synced else {}
        return bool(having) and node not in having

    def cloud_addresses(self) -> int:
        """Count the addresses of ready nodes that are not reached through the tunnel.

        As in yurttunnel 1.2, only the first ``InternalIP`` of each node counts.
        """
        first = (next(node.internal(), None) for node in self.all() if node.ready and not node.edge)
        return len({address for address in first if address is not None})

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None:
            self._forget(old)
        if new is not None:
            hosts = list(new.hosts())
            for host in hosts:
                self._by_host.setdefault(host, {})[new.name] = new
            if len(hosts) <= len(new.addresses) and (old is None or old.addresses != new.addresses):
                log.warn(
                    "node {node} cannot be reached by all of its addresses, because some are"
                    " invalid: {addresses}",
                    node=new.name,
                    addresses=", ".join(repr(address) for _, address in new.addresses),
                )

    def _forget(self, node: Node) -> None:
        for host in set(node.hosts()):
            named = self._by_host[host]
            del named[node.name]
            if not named:
                del self._by_host[host]


METRICS: tuple[Metric[Nodes], ...] = (
    # The name is that of yurttunnel 1.2.
    gauge(
        "yurttunnel_server_cloud_nodes_counter",
        "Ready nodes that are not reached through the tunnel, counted by their first InternalIP:"
        " those without a true label openyurt.io/is-edge-worker or"
        " openyurt.io/edge-enable-reverseTunnel-client. If 0 although the control plane has nodes:"
        " the API has been unreachable since the server started (/readyz), or these nodes are"
        " labeled as edge nodes or are not ready (kubectl get nodes --show-labels).",
        Nodes.cloud_addresses,
    ),
)
