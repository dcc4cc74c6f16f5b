"""The middleware ``deputies``: who speaks for others chooses no node by what a request says.

kube-apiserver asks nodes for its own clients (``nodes/proxy``, ``pods/proxy``, ``exec``), checks
what they may do with the node that it dials, and then passes on their ``Host``, their path and
their other fields (``ServeHTTP`` and ``tryUpgrade`` of k8s.io/apimachinery
pkg/util/proxy/upgradeaware.go, with ``UseLocationHost`` unset). If these chose the node, whoever
may use one node could use them all. The same is true of what the firewall has led to the port
without TLS, which asks nobody who he is. So it is the connection that decides:

1. Where our firewall rules have led it here, the address and port that it was meant for.
2. Else the name in the ClientHello (SNI), which callers send that dial a node's name.
3. Else, for an upgrade of ``exec``, ``attach`` and ``portForward`` by kube-apiserver, the pod in
   the path: a kube-apiserver that does not verify kubelets sends no name with these
   (``dialURL`` of k8s.io/apimachinery pkg/util/proxy/dial.go).

The pod in a path has to be on the node that the connection is for; of several nodes with one
address it tells which. A pod that no cache knows yet tells nothing. Everybody else speaks for
himself: his fields choose, and he is asked whether he may.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.cluster.nodes import KUBELET_PORT, Node, Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import requested_upgrade
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.server.interception.callers import CertificateUsers
from yurttunnel.server.interception.connections import Aim, Aims
from yurttunnel.server.interception.destination import (
    DESTINATION_FIELD,
    NODE_FIELD,
    Destination,
)
from yurttunnel.server.interception.middleware import IMiddleware
from yurttunnel.server.interception.request import Handler, InterceptedRequest
from yurttunnel.server.interception.resolution import pod_in
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.passthrough.original_destination import SocketAddress
from yurttunnel.server.registry import SessionRegistry

READ_ONLY_PORT = 10255
"""Where kubelets serve what may only be read (``KubeletReadOnlyPort`` of k8s.io/kubernetes
pkg/cluster/ports)."""

_UPGRADED = frozenset({b"exec", b"attach", b"portForward"})
"""What kube-apiserver itself asks to upgrade (pkg/registry/core/pod/rest/subresources.go)."""

_NOTHING_TELLS = (
    "nothing tells which node this is for: the connection was for no address of one, and its TLS"
    " names none (SNI); what the request says does not count from who speaks for others. Have"
    " kube-apiserver dial nodes by their names (--kubelet-preferred-address-types=Hostname) and"
    " verify them (--kubelet-certificate-authority, with --passthrough-port here), or use"
    " --enable-iptables"
)


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """What is known of nodes and pods, and of who leads connections here.

    ``iptables`` says whether this server leads connections here by firewall rules. ``services``
    have the addresses to which kube-proxy leads, not our rules; a node that claims one is not
    believed.
    """

    nodes: Nodes
    pods: Pods
    services: ClusterAddresses
    iptables: bool


@implementer(IMiddleware)
class Deputies:
    """Sets the destination of requests of those who speak for others, and ``proven``.

    It comes before all else that chooses a destination. ``users`` tell kube-apiserver by its
    certificate, ``aims`` where connections were going.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        cluster: KnownCluster,
        users: CertificateUsers,
        aims: Aims,
    ) -> None:
        self._finder = NodeFinder(registry, cluster.nodes)
        self._cluster = cluster
        self._users = users
        self._aims = aims
        self._warnings = RateLimitedLog(clock, self._log)

    def wrap(self, handler: Handler) -> Handler:
        """See :class:`IMiddleware`."""

        def decided(request: InterceptedRequest) -> None:
            exchange = request.exchange
            aim = self._aims.of(exchange.transport)
            if self._speaks_for_others(exchange, aim):
                try:
                    request.destination = self._destination(exchange, aim)
                except RequestFailed as error:
                    self._refuse(request, error)
                    return
                request.proven = True
            handler(request)

        return decided

    def _speaks_for_others(self, exchange: IExchange, aim: Aim) -> bool:
        if exchange.secure:
            return self._users.is_allowed(exchange.transport)
        return aim.led_from is not None and not self._is_services(aim.led_from)

    def _destination(self, exchange: IExchange, aim: Aim) -> Destination:
        """Find where a request goes; raises :class:`RequestFailed`."""
        head = exchange.head
        for field in (NODE_FIELD, DESTINATION_FIELD):
            if head.values(field):
                raise RequestFailed(
                    403,
                    f"{field.decode().title()} does not count from who speaks for others, as"
                    " kube-apiserver does: leave it out, or ask with a certificate or token of"
                    " your own",
                )
        led_from = aim.led_from
        if led_from is not None and self._is_led(led_from):
            return self._led(led_from, aim, head)
        if not exchange.secure:
            raise RequestFailed(
                503,
                f"the firewall has led this connection here from {led_from}, and not by rules that"
                " this server knows of (yet): see /steering of the meta port",
            )
        named = self._named(aim)
        if named:
            node = self._only(named, str(aim.server_name), head)
            by_service = led_from is not None and self._is_services(led_from)
            port = led_from.port if led_from is not None and by_service else node.kubelet_port
            host = self._finder.address(node)
            return self._checked(node, Destination(node.name, host, port), head)
        return self._of_pod(head)

    def _led(self, led_from: SocketAddress, aim: Aim, head: RequestHead) -> Destination:
        """Decide by the address that a connection was meant for."""
        host = str(led_from.address)
        nodes = [each for each in self._finder.meant(host) if self._is_tunneled(each)]
        if not nodes:
            raise RequestFailed(
                503,
                f"{led_from} is the address of no node behind the tunnel that is known here: see"
                " /steering of the meta port",
            )
        named = {node.name for node in self._named(aim)}
        nodes = [node for node in nodes if node.name in named] or nodes
        node = self._only(nodes, host, head)
        return self._checked(node, Destination(node.name, host, led_from.port), head)

    def _only(self, nodes: Collection[Node], host: str, head: RequestHead) -> Node:
        if len(nodes) > 1:
            pods_node = self._node_of_pod(head)
            nodes = [node for node in nodes if node.name == pods_node] or nodes
        if len(nodes) > 1:
            names = ", ".join(sorted(node.name for node in nodes))
            raise RequestFailed(
                400,
                f"{host} is the address of {len(nodes)} nodes: {names}; have kube-apiserver dial"
                " them by their names (--kubelet-preferred-address-types=Hostname, with DNS"
                " records)",
            )
        return next(iter(nodes))

    def _checked(self, node: Node, destination: Destination, head: RequestHead) -> Destination:
        """Return ``destination`` unless the path is about a pod of another node."""
        if destination.port not in (node.kubelet_port, KUBELET_PORT, READ_ONLY_PORT):
            return destination
        pods_node = self._node_of_pod(head)
        if pods_node is not None and pods_node != node.name:
            raise RequestFailed(
                403,
                f"the pod in the path is on the node {pods_node}, and the connection was for"
                f" {node.name}: ask the node that has the pod",
            )
        return destination

    def _of_pod(self, head: RequestHead) -> Destination:
        """Decide by the pod in the path, for what kube-apiserver sends without a name."""
        first = head.target.split(b"/", 2)[1:2]
        if requested_upgrade(head) is None or not _UPGRADED.issuperset(first):
            raise RequestFailed(403, _NOTHING_TELLS)
        name = self._node_of_pod(head)
        if name is None:
            raise RequestFailed(
                503, f"the pod in the path is not known here (yet), and {_NOTHING_TELLS}"
            )
        node = self._cluster.nodes.get(name) or Node(name)
        return Destination(name, self._finder.address(node), node.kubelet_port)

    def _named(self, aim: Aim) -> Collection[Node]:
        """Return the nodes that the name in the ClientHello means.

        One that the API has not told of may have proven its name by its certificate.
        """
        name = aim.server_name
        if name is None:
            return ()
        nodes = self._finder.meant(name)
        session = None if nodes else self._finder.own_session(name)
        return nodes if session is None else (Node(session.node),)

    def _node_of_pod(self, head: RequestHead) -> str | None:
        pod = pod_in(head.target)
        return None if pod is None else self._cluster.pods.node_of(*pod)

    def _is_tunneled(self, node: Node) -> bool:
        return node.edge or self._finder.own_session(node.name) is not None

    def _is_led(self, led_from: SocketAddress) -> bool:
        """Say whether our rules may have led a connection here; a Service's they have not."""
        services = self._cluster.services
        return self._cluster.iptables and services.synced and not self._is_services(led_from)

    def _is_services(self, led_from: SocketAddress) -> bool:
        return led_from.address in self._cluster.services.addresses

    def _refuse(self, request: InterceptedRequest, error: RequestFailed) -> None:
        request.refusal = error.text
        self._warnings.warn(
            "request {request_id} is refused: {text}",
            request_id=request.request_id,
            text=error.text,
        )
        request.exchange.fail(error.status, error.text)
