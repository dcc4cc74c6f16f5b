"""From what a connection says to the node that it means, and to what is dialed there."""

from __future__ import annotations

from collections.abc import Callable, Collection

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.http.authority import Address
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.registry import SessionRegistry


class PassthroughNodes:
    """Finds nodes that are behind the tunnel, by what the API knows of them.

    Other nodes are not reached from here, even if they have agents: whoever connects is a
    stranger to the server. Nor are those of which only agents know: without the API nobody says
    that they are behind the tunnel. ``is_led`` says whether connections to an address may have
    been led here by rules of this server. To all others somebody else has, as kube-proxy those to
    a Service; a node that claims such an address is not believed.
    """

    def __init__(
        self, registry: SessionRegistry, nodes: Nodes, is_led: Callable[[Address], bool]
    ) -> None:
        self._finder = NodeFinder(registry, nodes)
        self._nodes = nodes
        self._is_led = is_led

    def by_address(self, address: Address, port: int) -> Destination | None:
        """Return the destination of a connection to ``address`` and ``port``.

        ``None`` where the address tells nothing: it is that of no node, or of several, or our
        rules have not led it here.
        """
        if not (self._nodes.synced and self._is_led(address)):
            return None
        node = _only(self._nodes.claiming(address))
        return None if node is None else Destination(node.name, str(address), port)

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
