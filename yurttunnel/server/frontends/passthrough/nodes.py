"""Maps an original destination or a server name to a node and to the address dialed there."""

from __future__ import annotations

from collections.abc import Collection

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.steering.original_destination import SocketAddress


class PassthroughNodes:
    """Finds nodes behind the tunnel by what the API knows of them.

    Other nodes are not reachable from here, even if they have agents, because callers are not
    authenticated. Nor are nodes that only agents know: without the API nothing confirms that they
    are behind the tunnel. ``iptables`` is whether rules of this server redirect connections here.
    ``services`` are the Services from which kube-proxy has sent connections here, whichever of
    their addresses and node ports were dialed; the claim of a node to such an address is ignored.
    """

    def __init__(
        self, registry: SessionRegistry, nodes: Nodes, services: ClusterAddresses, iptables: bool
    ) -> None:
        self._finder = NodeFinder(registry, nodes)
        self._nodes = nodes
        self._services = services
        self._iptables = iptables

    def port(self, original: SocketAddress) -> int:
        """Return the node's port that a connection to ``original`` is for.

        For a node port this is the port of the Service; its ports are those of kubelets.
        """
        return self._services.port_behind(original.address, original.port) or original.port

    def by_address(self, original: SocketAddress) -> Destination | None:
        """Return the destination of a connection to ``original``.

        ``None`` if the address does not determine it: the address belongs to no node or to several,
        or the server's rules have not redirected the connection.
        """
        if not (self._iptables and self._nodes.synced and self._services.synced):
            return None
        if self._services.port_behind(original.address, original.port) is not None:
            return None
        node = _only(self._nodes.with_address(original.address))
        return (
            None if node is None else Destination(node.name, str(original.address), original.port)
        )

    def by_name(self, name: str) -> Destination | None:
        """Return the kubelet of the node ``name``, which is in lower case.

        ``None`` if there is no such node behind the tunnel.
        """
        node = _only(self._nodes.find(name))
        if node is None:
            return None
        return Destination(node.name, self._finder.address(node), node.kubelet_port)


def _only(nodes: Collection[Node]) -> Node | None:
    """Return the only node of ``nodes`` if it is behind the tunnel, otherwise ``None``."""
    node = next(iter(nodes)) if len(nodes) == 1 else None
    return node if node is not None and node.edge else None
