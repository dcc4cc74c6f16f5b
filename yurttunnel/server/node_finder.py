"""From the name or address of a node to the node, and to what is dialed there."""

from __future__ import annotations

from collections.abc import Collection

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.server.registry import INodeSession, SessionRegistry


class NodeFinder:
    """Brings together what the API knows of nodes and what connected agents claim.

    Each node is served by its own agent: certificates of a cluster name no others.
    """

    def __init__(self, registry: SessionRegistry, nodes: Nodes) -> None:
        self._registry = registry
        self._nodes = nodes

    def meant(self, host: str) -> Collection[Node]:
        """Return the nodes that ``host`` may mean.

        Of several, those that are not reached by the tunnel are not meant: they have neither the
        label of an edge node nor an agent. An edge node that is cut off may well be meant.
        """
        nodes = self._nodes.find(host)
        if len(nodes) > 1:
            tunneled = [node for node in nodes if node.edge or self.own_session(node.name)]
            nodes = tunneled or nodes
        return nodes

    def address(self, node: Node) -> str:
        """Return the ``InternalIP`` that the agent has, too, or the first, or else the name."""
        addresses = list(node.internal())
        session = self.own_session(node.name)
        served = session.identifiers.addresses if session is not None else frozenset()
        preferred = [address for address in addresses if address in served] or addresses
        return str(preferred[0]) if preferred else node.name

    def own_session(self, name: str) -> INodeSession | None:
        """Return the session of the node ``name`` itself."""
        session = self._registry.found(name)
        return session if session is not None and session.node == name else None
