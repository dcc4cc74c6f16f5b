"""The middleware ``localhost-ports``: some ports of a node refer to its loopback address.

On these ports a service of the node listens on the loopback address only, but callers use the
node's address, the one that they know. The ports are in the key ``localhost-proxy-ports`` of the
ConfigMap ``yurt-tunnel-server-cfg``.
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
    """Redirects requests for such a port of a node to the node's loopback address.

    It runs after :class:`~yurttunnel.server.frontends.kubelet.resolution.Resolution`, which
    determines the node. Other destinations are unchanged, such as a host that its agent serves, or
    a node that the agent of another node serves: the loopback address there is another machine's.
    """

    def __init__(self, registry: SessionRegistry, nodes: Nodes, ports: ProxyPorts) -> None:
        self._registry = registry
        self._nodes = nodes
        self._ports = ports

    def wrap(self, handler: Handler) -> Handler:
        def redirected(request: InterceptedRequest) -> None:
            destination = request.destination
            if destination is not None and destination.port in self._ports.ports.localhost:
                request.destination = self._redirected(destination)
            handler(request)

        return redirected

    def _redirected(self, destination: Destination) -> Destination:
        session = self._registry.find_or_none(destination.node)
        if session is None:
            # The proxy reports it to the caller.
            return destination
        node = self._nodes.get(session.node) or _node_of_session(session)
        if not node.has_host(destination.host):
            return destination
        versions = {address.version for address in node.internal()}
        return replace(destination, host="::1" if versions == {6} else "127.0.0.1")


def _node_of_session(session: INodeSession) -> Node:
    """Return a node with what its agent has proven, for a node that is not known from the API."""
    addresses = tuple(("InternalIP", str(each)) for each in session.identifiers.addresses)
    return Node(session.node, addresses)
