"""The middleware ``localhost-ports``: some ports of a node mean its loopback address.

On these ports a service of the node listens on the loopback address alone, and callers ask for
the address of the node, since that is what they know. Which ports they are says the key
``localhost-proxy-ports`` of the ConfigMap ``yurt-tunnel-server-cfg``.
"""

from __future__ import annotations

from dataclasses import replace

from zope.interface import implementer

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.registry import INodeSession, SessionRegistry


@implementer(IMiddleware)
class LocalhostPorts:
    """Sends requests for such a port of a node to the loopback address there.

    It comes after :class:`~yurttunnel.server.frontends.kubelet.resolution.Resolution`, which finds
    the node. What is not the node's own, as a host that its agent serves or a node that another
    one's agent serves, goes on as it was: the loopback address is another machine's there.
    """

    def __init__(self, registry: SessionRegistry, nodes: Nodes, ports: ProxyPorts) -> None:
        self._registry = registry
        self._nodes = nodes
        self._ports = ports

    def wrap(self, handler: Handler) -> Handler:
        """See :class:`IMiddleware`."""

        def led(request: InterceptedRequest) -> None:
            destination = request.destination
            if destination is not None and destination.port in self._ports.ports.localhost:
                request.destination = self._led(destination)
            handler(request)

        return led

    def _led(self, destination: Destination) -> Destination:
        session = self._registry.found(destination.node)
        if session is None:
            # The proxy tells the caller.
            return destination
        node = self._nodes.get(session.node) or _node_behind(session)
        if not node.is_called(destination.host):
            return destination
        versions = {address.version for address in node.internal()}
        return replace(destination, host="::1" if versions == {6} else "127.0.0.1")


def _node_behind(session: INodeSession) -> Node:
    """Return what the agent proves of its node, of which the API has said nothing."""
    addresses = tuple(("InternalIP", str(each)) for each in session.identifiers.addresses)
    return Node(session.node, addresses)
