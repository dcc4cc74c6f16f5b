"""The nodes of the cluster: found by name, and by every address that the API knows of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from sys import intern

from twisted.logger import Logger

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.http.authority import (
    Address,
    BadAuthority,
    address_in,
    canonical_host,
    means_every_machine,
)
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import NODES, Object
from yurttunnel.metrics import Metric, gauge
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT

LABEL_PREFIXES = ("openyurt.io", "alibabacloud.com")
"""What the labels of edge nodes begin with: OpenYurt's own, and that of its 0.2 and 0.3."""

_EDGE_WORKER = tuple(f"{prefix}/is-edge-worker" for prefix in LABEL_PREFIXES)
_TUNNEL_CLIENT = tuple(f"{prefix}/edge-enable-reverseTunnel-client" for prefix in LABEL_PREFIXES)

MOST_ADDRESSES = 64
"""How many addresses of a node are kept: its own kubelet writes them, and as many as it likes."""

LONGEST_ADDRESS = 253
"""Characters of one that is kept: those of a name (RFC 1123 section 2.1)."""

log = Logger()


@dataclass(frozen=True, slots=True)
class Node:
    """What is kept of a node; nothing of it changes with every heartbeat.

    ``edge`` is a node that the labels say is reached by the tunnel, ``cloud`` one of which they
    say that it is none (``is-edge-worker`` is ``false``, not just absent). ``addresses`` are
    pairs of type and address, as ``status.addresses`` has them and in its order, within bounds.
    """

    name: str
    addresses: tuple[tuple[str, str], ...] = ()
    kubelet_port: int = KUBELET_PORT
    edge: bool = False
    cloud: bool = False
    ready: bool = False

    def internal(self) -> Iterator[Address]:
        """Go through the addresses of type ``InternalIP``."""
        for kind, address in self.addresses:
            if kind == "InternalIP" and (parsed := address_in(address)) is not None:
                yield parsed

    def hosts(self) -> Iterator[Address | str]:
        """Go through its name and all its addresses, each in its canonical form."""
        for host in (self.name, *(address for _, address in self.addresses)):
            try:
                canonical = canonical_host(host)
            except BadAuthority:
                # Nobody can ask for it.
                continue
            # A machine whose host name was never set reports localhost.
            if not means_every_machine(canonical):
                yield canonical

    def is_called(self, host: str) -> bool:
        """Return whether ``host`` is its name or one of its addresses, in any spelling."""
        try:
            desired = canonical_host(host)
        except BadAuthority:
            return False
        return desired in self.hosts()


def node_from(node: Object) -> Node:
    """Keep what is needed of a ``Node`` (k8s.io/api core/v1 types.go)."""
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    labels = mapping(metadata.get("labels"))
    edge = any(labels.get(label) == "true" for label in (*_EDGE_WORKER, *_TUNNEL_CLIENT))
    return Node(
        name=intern(text(metadata.get("name"))),
        addresses=tuple(islice(_addresses(status), MOST_ADDRESSES)),
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
        if len(address) <= LONGEST_ADDRESS:
            yield intern(text(each.get("type"))), address


def _kubelet_port(status: Mapping[str, object]) -> int:
    """Read ``status.daemonEndpoints.kubeletEndpoint.Port``, which has a capital letter indeed."""
    endpoint = mapping(mapping(status.get("daemonEndpoints")).get("kubeletEndpoint"))
    port = endpoint.get("Port")
    return port if isinstance(port, int) and 1 <= port <= 65535 else KUBELET_PORT


NODES_SPEC: InformerSpec[Node] = InformerSpec(NODES, node_from)


class Nodes:
    """All nodes, kept current by ``informers``.

    ``own_names`` are the DNS names of the server itself, in lower case and without final dot: no
    node is found by one, and none has it, whatever it says.
    """

    def __init__(self, informers: IInformers, own_names: Collection[str] = ()) -> None:
        self.own_names = own_names
        self._informer = informers.informer(NODES_SPEC)
        # The nodes that have a host for a name or address, by their names.
        self._by_host: dict[Address | str, dict[str, Node]] = {}
        self._informer.add_handler(self._changed)

    @property
    def synced(self) -> bool:
        """Whether all nodes have been known once."""
        return self._informer.synced

    def all(self) -> Collection[Node]:
        """Return all nodes."""
        nodes: Collection[Node] = self._informer.values()
        return nodes

    def add_handler(
        self, changed: Callable[[Node | None, Node | None], object]
    ) -> Callable[[], None]:
        """Have ``changed(old, new)`` called for each change, as informers do."""
        ended: Callable[[], None] = self._informer.add_handler(changed)
        return ended

    def get(self, name: str) -> Node | None:
        """Return the node called ``name``."""
        node: Node | None = self._informer.get(name)
        return node

    def find(self, host: str) -> Collection[Node]:
        """Return the nodes that ``host``, a name or an address, may mean.

        A name of the server means none. The name of a node is that of no other. Where it is an
        address, and one of others besides, all of them are found: packets for it may be for the
        latter. Else there may be several: sites behind NAT have the same private addresses, and the
        same public one. An ``InternalIP`` counts before other types of addresses. As long as not
        all nodes are known, an address tells nothing, since the others that have it may be missing.
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

    def claiming(self, address: Address) -> Collection[Node]:
        """Return all nodes that say that they have ``address``, of whatever type."""
        return self._by_host.get(address, {}).values()

    def is_anothers(self, node: str, host: str) -> bool:
        """Return whether ``host``, a name or an address, is of others and not of ``node``.

        Others are nodes, and the server by its names. The name of a node is its own alone, whatever
        others are called besides.
        """
        try:
            desired = canonical_host(host)
        except BadAuthority:
            return False
        if str(desired) == node:
            # The API may not have told of it yet.
            return False
        if desired in self.own_names or self.get(str(desired)) is not None:
            return True
        having = self._by_host.get(desired, {}) if self.synced else {}
        return bool(having) and node not in having

    def cloud_addresses(self) -> int:
        """Count the addresses of ready nodes that are not reached by the tunnel.

        As yurttunnel 1.2 counted them: the first ``InternalIP`` of each.
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
