"""From what a connection says to the node that it means, and to what is dialed there."""

from __future__ import annotations

from collections.abc import Collection

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.passthrough.original_destination import SocketAddress
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.registry import SessionRegistry


class PassthroughNodes:
    """Finds nodes that are behind the tunnel, by what the API knows of them.

    Other nodes are not reached from here, even if they have agents: whoever connects is a
    stranger to the server. Nor are those of which only agents know: without the API nobody says
    that they are behind the tunnel. ``iptables`` says whether rules of this server lead
    connections here. To ``services`` kube-proxy has led them, whichever of their addresses and
    node ports were dialed; a node that claims such an address is not believed.
    """

    def __init__(
        self, registry: SessionRegistry, nodes: Nodes, services: ClusterAddresses, iptables: bool
    ) -> None:
        self._finder = NodeFinder(registry, nodes)
        self._nodes = nodes
        self._services = services
        self._iptables = iptables

    def port(self, asked: SocketAddress) -> int:
        """Return the port of a node that a connection to ``asked`` is for.

        For a node port that is the port of the Service, which has those of kubelets.
        """
        return self._services.port_behind(asked.address, asked.port) or asked.port

    def by_address(self, asked: SocketAddress) -> Destination | None:
        """Return the destination of a connection to ``asked``.

        ``None`` where the address tells nothing: it is that of no node, or of several, or our
        rules have not led it here.
        """
        if not (self._iptables and self._nodes.synced and self._services.synced):
            return None
        if self._services.port_behind(asked.address, asked.port) is not None:
            return None
        node = _only(self._nodes.claiming(asked.address))
        return None if node is None else Destination(node.name, str(asked.address), asked.port)

    def by_name(self, name: str) -> Destination | None:
        """Return the kubelet of the node ``name``, in lower case.

        ``None`` if there is no such node behind the tunnel.
        """
        node = _only(self._nodes.find(name))
        if node is None:
            return None
        return Destination(node.name, self._finder.address(node), node.kubelet_port)


def _only(nodes: Collection[Node]) -> Node | None:
    """Return the one node of ``nodes``, if it is one and behind the tunnel."""
    node = next(iter(nodes)) if len(nodes) == 1 else None
    return node if node is not None and node.edge else None
