"""From what a connection says to the node that it means, and to what is dialed there."""

from __future__ import annotations

from yurttunnel.cluster.fields import Address
from yurttunnel.cluster.nodes import KUBELET_PORT, Node, Nodes
from yurttunnel.server.interception.destination import Destination
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.registry import SessionRegistry


class PassthroughNodes:
    """Finds nodes by what the API knows of them, and connected ones by their certificates.

    It answers as :class:`~yurttunnel.server.interception.resolution.Resolution` does for
    requests, but that it says nothing where several nodes are meant.
    """

    def __init__(self, registry: SessionRegistry, nodes: Nodes) -> None:
        self._finder = NodeFinder(registry, nodes)

    def by_address(self, address: Address, port: int) -> Destination | None:
        """Give the destination of a connection to ``address`` and ``port``.

        ``None`` where the address is that of no node, or of several. Addresses of Services are
        such, for which a connection was meant that kube-proxy has led here.
        """
        host = str(address)
        node = self._only(host)
        if node is not None:
            return Destination(self._finder.served_as(node), host, port)
        if self._finder.meant(host) or not self._is_claimed(address):
            return None
        return Destination(host, host, port)

    def by_name(self, name: str) -> Destination | None:
        """Give the kubelet of the node ``name``, in lower case; ``None`` if there is no such node.

        Where the API does not know the node, its agent does.
        """
        node = self._only(name)
        if node is not None:
            return Destination(
                self._finder.served_as(node), self._finder.address(node), node.kubelet_port
            )
        session = self._finder.named(name)
        return Destination(name, name, KUBELET_PORT) if session is not None else None

    def _only(self, host: str) -> Node | None:
        """Give the one node that ``host`` means."""
        nodes = self._finder.meant(host)
        return next(iter(nodes)) if len(nodes) == 1 else None

    def _is_claimed(self, address: Address) -> bool:
        """Say whether an agent claims ``address``: a default route takes those of Services, too."""
        session = self._finder.session(str(address))
        if session is None:
            return False
        claimed = session.identifiers
        return address in claimed.addresses or any(address in each for each in claimed.networks)
