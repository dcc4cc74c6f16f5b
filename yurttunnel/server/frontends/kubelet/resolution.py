"""The middleware ``resolution``: determines the node of a request, in a cluster.

In this order:

1. ``X-Tunnel-Proxy-Dest`` and ``X-Tunnel-Proxy-Host`` are explicit, so they have the same meaning
   as without a cluster.
2. The namespace and the pod in the path determine the node on which the pod runs, whatever ``Host``
   contains: since Kubernetes 1.22 ``Host`` does not always determine the node, and if several nodes
   have the same address it cannot. The pod also counts if ``X-Tunnel-Proxy-Host`` names its node.
3. ``Host`` is the name or an address of a node.

For unknown pods and hosts the fields count: an agent may serve hosts that are not nodes, and the
caches may be incomplete.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from zope.interface import implementer

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.http.authority import parse_address
from yurttunnel.http.head import HeadError, RequestHead
from yurttunnel.server.frontends.kubelet.destination import (
    Destination,
    destination_of,
    named_node,
    names_destination,
)
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.registry import SessionRegistry

_POD_PATHS = frozenset(
    {b"attach", b"checkpoint", b"containerLogs", b"exec", b"portForward", b"run"}
)
"""Paths that are followed by ``/namespace/pod``: ``InstallDebuggingHandlers`` and others in
pkg/kubelet/server/server.go of Kubernetes."""

_MAX_NAMED = 5


class PodPath(NamedTuple):
    """The verb and the pod in a path."""

    verb: bytes
    namespace: str
    name: str


def pod_in(target: bytes) -> PodPath | None:
    """Return the verb and the pod of a request to a kubelet, ``None`` if it is not about a pod.

    The path is decoded as a whole before it is split, as in kubelets.
    """
    path = target.partition(b"?")[0]
    if b"%" in path:
        path = unquote_to_bytes(path)
    parts = path.split(b"/", 4)
    if len(parts) < 4 or parts[0] or parts[1] not in _POD_PATHS:
        return None
    # Names of pods are ASCII; others are in no cache.
    namespace, name = (part.decode("utf-8", "replace") for part in parts[2:4])
    return PodPath(parts[1], namespace, name)


@implementer(IMiddleware)
class Resolution:
    """Sets ``request.destination`` from the caches of nodes and pods, without waiting.

    A destination that is set already is kept. This has to run before middlewares that need the
    node.
    """

    def __init__(self, registry: SessionRegistry, nodes: Nodes, pods: Pods) -> None:
        self._finder = NodeFinder(registry, nodes)
        self._nodes = nodes
        self._pods = pods

    def wrap(self, handler: Handler) -> Handler:
        def resolved(request: InterceptedRequest) -> None:
            exchange = request.exchange
            if request.destination is None:
                try:
                    request.destination = self.resolve(exchange.head, exchange.secure)
                except HeadError as error:
                    exchange.fail(error.status, error.text)
                    return
            handler(request)

        return resolved

    def resolve(self, head: RequestHead, secure: bool) -> Destination:
        """Return the destination of a request; ``secure`` is whether it arrived over TLS.

        Raises :class:`HeadError` (400) with the correct form.
        """
        named = named_node(head)
        node = None if names_destination(head) else self._node_of_pod(head)
        if node is not None and (not named or node.has_host(named)):
            return self._kubelet(node, head, secure)
        requested = destination_of(head)
        node = self._only(requested.node)
        if node is None:
            return requested
        return Destination(node.name, self._dialed(node, requested.host), requested.port)

    def _node_of_pod(self, head: RequestHead) -> Node | None:
        pod = pod_in(head.target)
        name = self._pods.node_of(pod.namespace, pod.name) if pod is not None else None
        if name is None:
            return None
        # A node that is not in the cache yet is known by its name.
        return self._nodes.get(name) or Node(name)

    def _kubelet(self, node: Node, head: RequestHead, secure: bool) -> Destination:
        # The port in the status is that for TLS.
        port = node.kubelet_port if secure else destination_of(head).port
        return Destination(node.name, self._finder.address(node), port)

    def _dialed(self, node: Node, host: str) -> str:
        """Return ``host`` as requested if the dialer can resolve it, otherwise the node's address.

        An agent knows the name of its own node. Other names of nodes may be known to the API only,
        so the address is dialed.
        """
        knows = host == node.name and self._finder.own_session(node.name) is not None
        if knows or parse_address(host) is not None or not node.has_host(host):
            return host
        return self._finder.address(node)

    def _only(self, host: str) -> Node | None:
        """Return the only node that ``host`` refers to, ``None`` if none is known."""
        nodes = self._finder.nodes_named(host)
        if len(nodes) > 1:
            raise HeadError(400, _ambiguous(host, sorted(node.name for node in nodes)))
        return next(iter(nodes), None)


def listed(names: list[str]) -> str:
    """Return some of the names, and the number of the others: there may be thousands."""
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _ambiguous(host: str, names: list[str]) -> str:
    return (
        f"{host} is the address of {len(names)} nodes: {listed(names)}; name one of them,"
        f" as X-Tunnel-Proxy-Host: {names[0]}"
    )
