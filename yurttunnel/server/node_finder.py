"""Finds a node by a name or address, and the address to dial for it."""

from __future__ import annotations

from collections.abc import Collection

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.server.registry import INodeSession, SessionRegistry


class NodeFinder:
    """Combines what the API knows of nodes with the claims of connected agents.

    Each node is served by its own agent: certificates of a cluster name no other nodes.
    """

    def __init__(self, registry: SessionRegistry, nodes: Nodes) -> None:
        self._registry = registry
        self._nodes = nodes

    def nodes_named(self, host: str) -> Collection[Node]:
        """Return the nodes that ``host`` may refer to.

        If there are several, those that the tunnel does not reach are excluded: they have neither
        the label of an edge node nor an agent. An edge node that is cut off is included.
        """
        nodes = self._nodes.find(host)
        if len(nodes) > 1:
            tunneled = [node for node in nodes if node.edge or self.own_session(node.name)]
            nodes = tunneled or nodes
        return nodes

    def address(self, node: Node) -> str:
        """Return the ``InternalIP`` that the agent also has, or the first, or else the name."""
        addresses = list(node.internal())
        session = self.own_session(node.name)
        served = session.identifiers.addresses if session is not None else frozenset()
        preferred = [address for address in addresses if address in served] or addresses
        return str(preferred[0]) if preferred else node.name

    def own_session(self, name: str) -> INodeSession | None:
        """Return the session of the node ``name`` itself."""
        session = self._registry.find_or_none(name)
        return session if session is not None and session.node == name else None
