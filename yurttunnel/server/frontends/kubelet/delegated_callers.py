"""The middleware ``delegated-callers``: requests of callers that act for others choose no node.

kube-apiserver sends requests to nodes for its own clients (``nodes/proxy``, ``pods/proxy``,
``exec``). It checks what they may do with the node that it dials, and then passes on their
``Host``, their path and their other fields (``ServeHTTP`` and ``tryUpgrade`` of k8s.io/apimachinery
pkg/util/proxy/upgradeaware.go, with ``UseLocationHost`` unset). If these chose the node, a client
that may use one node could use all of them. The same holds for connections that the firewall
redirects to the port without TLS, which authenticates nobody. So the connection determines the
node:

1. If our firewall rules have redirected it, its original address and port.
2. Otherwise the name in the ClientHello (SNI), sent by callers that dial a node's name.
3. Otherwise, for an ``exec``, ``attach`` or ``portForward`` upgrade by kube-apiserver whose
   ClientHello has no name at all, the pod in the path: a kube-apiserver that does not verify
   kubelets sends no name with these (``dialURL`` of k8s.io/apimachinery pkg/util/proxy/dial.go).
   If only firewall rules lead here, or if upgrades must be named, nothing determines the node, and
   everything that this kube-apiserver sends as an upgrade is rejected.

The pod in a path must be on the connection's node; if several nodes have the address, the pod
selects one of them. A pod that is not in the cache yet is ignored.

All other callers act for themselves, and connect to the server's own address or name: then their
fields choose the node, and their permission is reviewed. If their connection was for a node, it
determines the node for them, too, and their fields must not name another: a kube-apiserver that is
not in --allowed-callers looks like them. So what the firewall redirects here from an address that
is neither a node's nor that of a Service of this server reaches nothing, whoever the caller is. The
port without TLS trusts the fields of programs on this machine only. Callers from elsewhere that
connect by a node's name that resolves to this server (DNS) reach only the ports that are redirected
here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.http.authority import BadAuthority, strip_port
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import requested_upgrade
from yurttunnel.http.head import HeadError, RequestHead
from yurttunnel.http.interfaces import IExchange
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.server.frontends.kubelet.callers import CertificateUsers, client_of
from yurttunnel.server.frontends.kubelet.connections import ConnectionTarget, ConnectionTargets
from yurttunnel.server.frontends.kubelet.destination import (
    DESTINATION_FIELD,
    NODE_FIELD,
    Destination,
    destination_of,
)
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.frontends.kubelet.resolution import listed, pod_in
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.steering.original_destination import SocketAddress
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT, KUBELET_READ_ONLY_PORT

_UPGRADED = frozenset({b"exec", b"attach", b"portForward"})
"""What kube-apiserver itself sends as upgrades (pkg/registry/core/pod/rest/subresources.go)."""

_NODE_UNDETERMINED = (
    "no node can be determined: the connection was not to a node's address, its TLS names none"
    " (SNI), and header fields are ignored from callers that act for others. Have kube-apiserver"
    " dial nodes by their names (--kubelet-preferred-address-types=Hostname) and verify them"
    " (--kubelet-certificate-authority, with --passthrough-port here), or use --enable-iptables"
)

_UNNAMED_UPGRADE = (
    "the TLS of this upgrade names no node (SNI), and --unnamed-upgrades=refuse rejects it: have"
    " kube-apiserver dial nodes by their names and verify them (--kubelet-certificate-authority,"
    " with --passthrough-port here), or use --enable-iptables; to call the server itself, connect"
    " to its name"
)

_NOT_FOR_A_NODE = (
    "from other machines this port accepts only requests to a node: on a connection that the"
    " firewall has redirected here, or with --enable-dns-controller for a node's name in Host and"
    " a redirected port (http-proxy-ports); use --secure-port, or connect from this machine"
)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What is known of nodes and pods, and how connections are redirected here.

    ``iptables`` is whether this server redirects connections by firewall rules, ``dns`` whether by
    DNS records, on ``ports``. ``services`` have the addresses and node ports that kube-proxy
    redirects, not our rules: a node's claim to one is ignored. ``refuse_unnamed_upgrades`` is
    whether an upgrade is rejected if its connection has no name, whatever the request contains.
    """

    nodes: Nodes
    pods: Pods
    services: ClusterAddresses
    ports: ProxyPorts
    iptables: bool
    dns: bool
    refuse_unnamed_upgrades: bool


@implementer(IMiddleware)
class DelegatedCallers:
    """Sets the destination and ``proven``, unless the request may choose it, and ``client``.

    It runs before all other middlewares that choose a destination. ``users`` identify
    kube-apiserver by its certificate, ``targets`` are the destinations of connections.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        cluster: ClusterState,
        users: CertificateUsers,
        targets: ConnectionTargets,
    ) -> None:
        self._finder = NodeFinder(registry, cluster.nodes)
        self._cluster = cluster
        self._users = users
        self._targets = targets
        self._warnings = RateLimitedLog(clock, self._log)

    def wrap(self, handler: Handler) -> Handler:
        def decided(request: InterceptedRequest) -> None:
            try:
                request.destination = self._destination(request)
            except RequestFailed as error:
                self._refuse(request, error)
                return
            handler(request)

        return decided

    def _destination(self, request: InterceptedRequest) -> Destination | None:
        """Return the destination of a request, ``None`` if its fields choose it.

        Raises :class:`RequestFailed`.
        """
        exchange = request.exchange
        head = exchange.head
        target = self._targets.of(exchange.transport)
        redirected_from = target.redirected_from
        if not exchange.secure:
            if redirected_from is None and target.is_local:
                return None
            if redirected_from is None or self._service_port(target) is not None:
                return self._by_dns_name(head, target)
        request.proven = True
        if not exchange.secure:
            return self._for_delegated_caller(exchange, target)
        if self._users.is_allowed(exchange.transport):
            request.client = client_of(head)
            return self._for_delegated_caller(exchange, target)
        destination = self._for_direct_caller(exchange, target)
        request.proven = destination is not None
        return destination

    def _for_delegated_caller(self, exchange: IExchange, target: ConnectionTarget) -> Destination:
        """Return the destination for a caller that acts for others."""
        head, redirected_from = exchange.head, target.redirected_from
        _check_fields(head)
        if redirected_from is not None and self._service_port(target) is None:
            return self._by_original_address(
                redirected_from, self._nodes_at(redirected_from), target, head
            )
        named = self._nodes_of_sni(target)
        if named:
            return self._by_server_name(named, target, head)
        self._check_named(head)
        return self._of_pod(head, target)

    def _for_direct_caller(
        self, exchange: IExchange, target: ConnectionTarget
    ) -> Destination | None:
        """Return the destination for any other caller, if the connection determines it."""
        head, redirected_from = exchange.head, target.redirected_from
        if self._service_port(target) is not None:
            redirected_from = None
        nodes = (
            self._tunneled(self._nodes_of_sni(target))
            if redirected_from is None
            else self._nodes_at(redirected_from)
        )
        if not nodes:
            if target.server_name is None:
                # The caller may still be a kube-apiserver.
                self._check_named(head)
            return None
        if redirected_from is not None:
            self._warn_of_unlisted(exchange)
        _check_fields(head)
        requested = self._requested_nodes(head)
        names = {node.name for node in nodes}
        if requested and names.isdisjoint(requested):
            raise RequestFailed(
                403,
                f"Host is the node {' or '.join(sorted(requested))}, and the connection was for"
                f" {' or '.join(sorted(names))}: connect to that node, or to the server's own"
                " address",
            )
        if redirected_from is not None:
            return self._by_original_address(redirected_from, nodes, target, head)
        if requested:
            # The name does not determine a port, and Host does.
            self._check_pod(names, head)
            return None
        return self._by_server_name(nodes, target, head)

    def _by_dns_name(self, head: RequestHead, target: ConnectionTarget) -> Destination:
        """Return the destination by a node's name, for callers of other machines without TLS."""
        _check_fields(head)
        try:
            requested = destination_of(head)
        except HeadError:
            raise RequestFailed(403, _NOT_FOR_A_NODE) from None
        named = self._cluster.nodes.find(requested.node)
        node = next((node for node in named if node.name == requested.node), None)
        port = self._service_port(target) or requested.port
        ports = (KUBELET_READ_ONLY_PORT, *self._cluster.ports.ports.http)
        if not self._cluster.dns or node is None or not self._is_tunneled(node):
            raise RequestFailed(403, _NOT_FOR_A_NODE)
        if port not in ports:
            raise RequestFailed(403, _NOT_FOR_A_NODE)
        return self._checked(node, Destination(node.name, self._finder.address(node), port), head)

    def _by_server_name(
        self, named: Collection[Node], target: ConnectionTarget, head: RequestHead
    ) -> Destination:
        """Return the destination by the name in the ClientHello."""
        node = self._only(named, str(target.server_name), head)
        port = self._service_port(target) or node.kubelet_port
        return self._checked(node, Destination(node.name, self._finder.address(node), port), head)

    def _by_original_address(
        self,
        redirected_from: SocketAddress,
        nodes: Collection[Node],
        target: ConnectionTarget,
        head: RequestHead,
    ) -> Destination:
        """Return the destination by a connection's original address, which ``nodes`` have."""
        host = str(redirected_from.address)
        named = {node.name for node in self._nodes_of_sni(target)}
        nodes = [node for node in nodes if node.name in named] or nodes
        node = self._only(nodes, host, head)
        return self._checked(node, Destination(node.name, host, redirected_from.port), head)

    def _nodes_at(self, redirected_from: SocketAddress) -> list[Node]:
        """Return the nodes with the original address of a connection, at least one.

        All nodes that claim it are included, whatever the type of the address, because nodes report
        their own addresses. Raises :class:`RequestFailed`.
        """
        cluster = self._cluster
        if not (cluster.iptables and cluster.services.synced and cluster.nodes.synced):
            raise RequestFailed(
                503,
                f"the firewall has redirected this connection from {redirected_from} here, but not"
                " by rules that this server knows (yet): see /steering of the meta port",
            )
        nodes = self._tunneled(cluster.nodes.with_address(redirected_from.address))
        if not nodes:
            raise RequestFailed(
                503,
                f"{redirected_from} is not the address of a known node behind the tunnel: see"
                " /steering of the meta port",
            )
        return nodes

    def _only(self, nodes: Collection[Node], host: str, head: RequestHead) -> Node:
        if len(nodes) > 1:
            pods_node = self._node_of_pod(head)
            nodes = [node for node in nodes if node.name == pods_node] or nodes
        if len(nodes) > 1:
            names = listed(sorted(node.name for node in nodes))
            raise RequestFailed(
                400,
                f"{host} is the address of {len(nodes)} nodes: {names}; have kube-apiserver dial"
                " them by their names (--kubelet-preferred-address-types=Hostname, with DNS"
                " records)",
            )
        return next(iter(nodes))

    def _checked(self, node: Node, destination: Destination, head: RequestHead) -> Destination:
        """Return ``destination`` unless the path is for a pod of another node."""
        if destination.port not in (node.kubelet_port, KUBELET_PORT, KUBELET_READ_ONLY_PORT):
            return destination
        self._check_pod({node.name}, head)
        return destination

    def _check_pod(self, names: Collection[str], head: RequestHead) -> None:
        pods_node = self._node_of_pod(head)
        if pods_node is not None and pods_node not in names:
            raise RequestFailed(
                403,
                f"the pod in the path is on the node {pods_node}, and the connection was for"
                f" {' or '.join(sorted(names))}: connect to the node that runs the pod",
            )

    def _check_named(self, head: RequestHead) -> None:
        """Reject requests that kube-apiserver may have sent as upgrades to any node."""
        if self._cluster.refuse_unnamed_upgrades and _is_upgrade(head):
            raise RequestFailed(403, _UNNAMED_UPGRADE)

    def _of_pod(self, head: RequestHead, target: ConnectionTarget) -> Destination:
        """Return the destination by the pod in the path, for kube-apiserver's unnamed upgrades.

        Only if names lead here: a firewall rule would have redirected such a connection.
        """
        pod = pod_in(head.target)
        may_be_named = self._cluster.dns or not self._cluster.iptables
        if not (target.lacks_sni and may_be_named and requested_upgrade(head) is not None):
            raise RequestFailed(403, _NODE_UNDETERMINED)
        if pod is None or pod.verb not in _UPGRADED:
            raise RequestFailed(403, _NODE_UNDETERMINED)
        name = self._node_of_pod(head)
        if name is None:
            raise RequestFailed(
                503, f"the pod in the path is not known here (yet), and {_NODE_UNDETERMINED}"
            )
        node = self._cluster.nodes.get(name) or Node(name)
        return Destination(name, self._finder.address(node), node.kubelet_port)

    def _nodes_of_sni(self, target: ConnectionTarget) -> Collection[Node]:
        """Return the nodes with the name in the ClientHello."""
        return () if target.server_name is None else self._nodes_named(target.server_name)

    def _requested_nodes(self, head: RequestHead) -> set[str]:
        """Return the names of the nodes that ``Host`` refers to."""
        requested: set[str] = set()
        for value in head.values(b"host"):
            try:
                host = strip_port(value.decode("ascii", "backslashreplace"))
            except BadAuthority:
                continue
            requested.update(node.name for node in self._nodes_named(host))
        return requested

    def _nodes_named(self, host: str) -> Collection[Node]:
        """Return the nodes that ``host`` refers to, in canonical form.

        A node that is not known from the API may have proven its name by its certificate.
        """
        nodes = self._finder.nodes_named(host)
        if nodes or host in self._cluster.nodes.own_names:
            return nodes
        session = self._finder.own_session(host)
        return () if session is None else (Node(session.node),)

    def _tunneled(self, nodes: Collection[Node]) -> list[Node]:
        return [node for node in nodes if self._is_tunneled(node)]

    def _node_of_pod(self, head: RequestHead) -> str | None:
        pod = pod_in(head.target)
        return None if pod is None else self._cluster.pods.node_of(pod.namespace, pod.name)

    def _is_tunneled(self, node: Node) -> bool:
        return node.edge or self._finder.own_session(node.name) is not None

    def _service_port(self, target: ConnectionTarget) -> int | None:
        """Return the port of this server's Service from which kube-proxy redirected a connection.

        ``None`` if it has not, as far as the kernel knows.
        """
        requested = target.redirected_from
        services = self._cluster.services
        return (
            None if requested is None else services.port_behind(requested.address, requested.port)
        )

    def _warn_of_unlisted(self, exchange: IExchange) -> None:
        certificate = self._users.of(exchange.transport)
        if certificate is not None and not certificate.is_node:
            self._warnings.warn(
                "{caller} sends requests on a connection to a node, but is not in"
                " --allowed-callers: if it is kube-apiserver, add it",
                caller=repr(certificate.user.name),
            )

    def _refuse(self, request: InterceptedRequest, error: RequestFailed) -> None:
        request.refusal = error.text
        self._warnings.warn(
            "request {request_id} is refused: {text}",
            request_id=request.request_id,
            text=error.text,
        )
        request.exchange.fail(error.status, error.text)


def _is_upgrade(head: RequestHead) -> bool:
    """Return whether kube-apiserver treats a request as an upgrade; its criteria are wider than
    ours.

    ``IsUpgradeRequest`` of k8s.io/apimachinery pkg/util/httpstream/httpstream.go.
    """
    return any(b"upgrade" in value.lower() for value in head.values(b"connection"))


def _check_fields(head: RequestHead) -> None:
    for field in (NODE_FIELD, DESTINATION_FIELD):
        if head.values(field):
            raise RequestFailed(
                403,
                f"{field.decode().title()} is ignored from callers that act for others, such as"
                " kube-apiserver, and on connections to a node: leave it out, or connect to the"
                " server's own address with your own certificate or token",
            )
