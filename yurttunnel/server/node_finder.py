"""From the name or address of a node to the node, to who serves it, and to what is dialed there."""

from __future__ import annotations

from collections.abc import Collection

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.server.registry import INodeSession, NodeNotConnected, SessionRegistry


class NodeFinder:
    """Brings together what the API knows of nodes and what connected agents claim."""

    def __init__(self, registry: SessionRegistry, nodes: Nodes) -> None:
        self._registry = registry
        self._nodes = nodes

    def meant(self, host: str) -> Collection[Node]:
        """Give the nodes that ``host`` may mean.

        Of several, those that are not reached by the tunnel are not meant: they have neither the
        label of an edge node nor an agent. An edge node that is cut off may well be meant.
        """
        nodes = self._nodes.find(host)
        if len(nodes) > 1:
            tunneled = [node for node in nodes if node.edge or self.own_session(node.name)]
            nodes = tunneled or nodes
        return nodes

    def served_as(self, node: Node) -> str:
        """Give the name or address by which the registry finds who serves ``node``.

        Its own agent, or another that serves it by its name, comes first; then one that serves
        its address, unless that is another node which has the same address itself.
        """
        if self.named(node.name) is not None:
            return node.name
        for address in map(str, node.internal()):
            session = self.session(address)
            other = self._nodes.get(session.node) if session is not None else None
            if other is not None and not other.is_called(address):
                return address
        return node.name

    def address(self, node: Node) -> str:
        """Give the ``InternalIP`` that the agent has, too, or the first, or else the name."""
        addresses = list(node.internal())
        session = self.own_session(node.name)
        served = session.identifiers.addresses if session is not None else frozenset()
        preferred = [address for address in addresses if address in served] or addresses
        return str(preferred[0]) if preferred else node.name

    def own_session(self, name: str) -> INodeSession | None:
        """Give the session of the node ``name`` itself."""
        session = self.session(name)
        return session if session is not None and session.node == name else None

    def named(self, name: str) -> INodeSession | None:
        """Give the session that claims ``name`` itself: a default route takes every name."""
        session = self.session(name)
        if session is not None and (session.node == name or name in session.identifiers.hosts):
            return session
        return None

    def session(self, host: str) -> INodeSession | None:
        """Give the session through which ``host`` is reached."""
        try:
            return self._registry.find(host)
        except NodeNotConnected:
            return None
