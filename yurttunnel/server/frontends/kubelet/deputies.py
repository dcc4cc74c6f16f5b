"""The middleware ``deputies``: who speaks for others chooses no node by what a request says.

kube-apiserver asks nodes for its own clients (``nodes/proxy``, ``pods/proxy``, ``exec``), checks
what they may do with the node that it dials, and then passes on their ``Host``, their path and
their other fields (``ServeHTTP`` and ``tryUpgrade`` of k8s.io/apimachinery
pkg/util/proxy/upgradeaware.go, with ``UseLocationHost`` unset). If these chose the node, whoever
may use one node could use them all. The same is true of what the firewall has led to the port
without TLS, which asks nobody who he is. So it is the connection that decides:

1. Where our firewall rules have led it here, the address and port that it was meant for.
2. Else the name in the ClientHello (SNI), which callers send that dial a node's name.
3. Else, for an upgrade of ``exec``, ``attach`` and ``portForward`` by kube-apiserver whose
   ClientHello has no name at all, the pod in the path: a kube-apiserver that does not verify
   kubelets sends none with these (``dialURL`` of k8s.io/apimachinery pkg/util/proxy/dial.go).
   Where firewall rules alone lead here, and where upgrades have to be named, nothing decides it,
   and whatever this kube-apiserver sends as an upgrade is refused.

The pod in a path has to be on the node that the connection is for; of several nodes with one
address it tells which. A pod that no cache knows yet tells nothing.

Everybody else speaks for himself, and comes to the server's own address or name: then his fields
choose, and he is asked whether he may. Where the connection was for a node it decides for him, too,
and what he says may name no other: a kube-apiserver whose name nobody has told this server looks
just like him. So what the firewall has led here from an address that is neither a node's nor a
Service's of this server reaches nothing, whoever asks. The port without TLS believes the fields of
programs of this machine alone. Who comes to it from elsewhere by a name of a node that leads here
(DNS) gets the ports that lead here, too.
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
from yurttunnel.server.frontends.kubelet.connections import Aim, Aims
from yurttunnel.server.frontends.kubelet.destination import (
    DESTINATION_FIELD,
    NODE_FIELD,
    Destination,
    destination_of,
)
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.frontends.kubelet.resolution import listed, pod_in
from yurttunnel.server.frontends.passthrough.original_destination import SocketAddress
from yurttunnel.server.node_finder import NodeFinder
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT, KUBELET_READ_ONLY_PORT

_UPGRADED = frozenset({b"exec", b"attach", b"portForward"})
"""What kube-apiserver itself asks to upgrade (pkg/registry/core/pod/rest/subresources.go)."""

_NOTHING_TELLS = (
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

_NOT_BY_A_NODE = (
    "from other machines this port accepts only requests to a node: on a connection that the"
    " firewall has redirected here, or with --enable-dns-controller for a node's name in Host and"
    " a redirected port (http-proxy-ports); use --secure-port, or connect from this machine"
)


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """What is known of nodes and pods, and of who leads connections here.

    ``iptables`` says whether this server leads connections here by firewall rules, ``dns`` whether
    by records of names, on ``ports``. ``services`` have the addresses and node ports from which
    kube-proxy leads, not our rules: a node that claims one is not believed. ``named_upgrades`` says
    that no request makes up for a name that the connection of an upgrade does not have.
    """

    nodes: Nodes
    pods: Pods
    services: ClusterAddresses
    ports: ProxyPorts
    iptables: bool
    dns: bool
    named_upgrades: bool


@implementer(IMiddleware)
class Deputies:
    """Sets the destination, and ``proven``, where the request has not to choose it; and ``client``.

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
            try:
                request.destination = self._destination(request)
            except RequestFailed as error:
                self._refuse(request, error)
                return
            handler(request)

        return decided

    def _destination(self, request: InterceptedRequest) -> Destination | None:
        """Find where a request goes, ``None`` where its fields choose that.

        Raises :class:`RequestFailed`.
        """
        exchange = request.exchange
        head = exchange.head
        aim = self._aims.of(exchange.transport)
        led_from = aim.led_from
        if not exchange.secure:
            if led_from is None and aim.from_here:
                return None
            if led_from is None or self._service_port(aim) is not None:
                return self._by_record(head, aim)
        request.proven = True
        if not exchange.secure:
            return self._of_deputy(exchange, aim)
        if self._users.is_allowed(exchange.transport):
            request.client = client_of(head)
            return self._of_deputy(exchange, aim)
        destination = self._of_others(exchange, aim)
        request.proven = destination is not None
        return destination

    def _of_deputy(self, exchange: IExchange, aim: Aim) -> Destination:
        """Decide for who speaks for others."""
        head, led_from = exchange.head, aim.led_from
        _check_fields(head)
        if led_from is not None and self._service_port(aim) is None:
            return self._led(led_from, self._led_to(led_from), aim, head)
        named = self._named(aim)
        if named:
            return self._by_name(named, aim, head)
        self._check_named(head)
        return self._of_pod(head, aim)

    def _of_others(self, exchange: IExchange, aim: Aim) -> Destination | None:
        """Decide for who speaks for himself, or does not say so: where the connection tells."""
        head, led_from = exchange.head, aim.led_from
        if self._service_port(aim) is not None:
            led_from = None
        nodes = self._tunneled(self._named(aim)) if led_from is None else self._led_to(led_from)
        if not nodes:
            if aim.server_name is None:
                # It may be a kube-apiserver all the same.
                self._check_named(head)
            return None
        if led_from is not None:
            self._warn_of_unlisted(exchange)
        _check_fields(head)
        asked = self._asked(head)
        names = {node.name for node in nodes}
        if asked and names.isdisjoint(asked):
            raise RequestFailed(
                403,
                f"Host is the node {' or '.join(sorted(asked))}, and the connection was for"
                f" {' or '.join(sorted(names))}: connect to that node, or to the server's own"
                " address",
            )
        if led_from is not None:
            return self._led(led_from, nodes, aim, head)
        if asked:
            # The name tells no port, and Host does.
            self._check_pod(names, head)
            return None
        return self._by_name(nodes, aim, head)

    def _by_record(self, head: RequestHead, aim: Aim) -> Destination:
        """Decide by the name of a node, by which others may come to the port without TLS."""
        _check_fields(head)
        try:
            asked = destination_of(head)
        except HeadError:
            raise RequestFailed(403, _NOT_BY_A_NODE) from None
        named = self._cluster.nodes.find(asked.node)
        node = next((node for node in named if node.name == asked.node), None)
        port = self._service_port(aim) or asked.port
        ports = (KUBELET_READ_ONLY_PORT, *self._cluster.ports.ports.http)
        if not self._cluster.dns or node is None or not self._is_tunneled(node):
            raise RequestFailed(403, _NOT_BY_A_NODE)
        if port not in ports:
            raise RequestFailed(403, _NOT_BY_A_NODE)
        return self._checked(node, Destination(node.name, self._finder.address(node), port), head)

    def _by_name(self, named: Collection[Node], aim: Aim, head: RequestHead) -> Destination:
        """Decide by the name in the ClientHello."""
        node = self._only(named, str(aim.server_name), head)
        port = self._service_port(aim) or node.kubelet_port
        return self._checked(node, Destination(node.name, self._finder.address(node), port), head)

    def _led(
        self, led_from: SocketAddress, nodes: Collection[Node], aim: Aim, head: RequestHead
    ) -> Destination:
        """Decide by the address that a connection was meant for, which ``nodes`` have."""
        host = str(led_from.address)
        named = {node.name for node in self._named(aim)}
        nodes = [node for node in nodes if node.name in named] or nodes
        node = self._only(nodes, host, head)
        return self._checked(node, Destination(node.name, host, led_from.port), head)

    def _led_to(self, led_from: SocketAddress) -> list[Node]:
        """Return the nodes whose address a connection was meant for, at least one.

        All that claim it are among them, of whatever type the address is: a node says itself which
        addresses it has. Raises :class:`RequestFailed`.
        """
        cluster = self._cluster
        if not (cluster.iptables and cluster.services.synced and cluster.nodes.synced):
            raise RequestFailed(
                503,
                f"the firewall has redirected this connection from {led_from} here, but not by"
                " rules that this server knows (yet): see /steering of the meta port",
            )
        nodes = self._tunneled(cluster.nodes.claiming(led_from.address))
        if not nodes:
            raise RequestFailed(
                503,
                f"{led_from} is not the address of a known node behind the tunnel: see /steering"
                " of the meta port",
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
        """Return ``destination`` unless the path is about a pod of another node."""
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
        """Refuse what kube-apiserver may have sent as an upgrade to any node."""
        if self._cluster.named_upgrades and _is_upgrade(head):
            raise RequestFailed(403, _UNNAMED_UPGRADE)

    def _of_pod(self, head: RequestHead, aim: Aim) -> Destination:
        """Decide by the pod in the path, for what kube-apiserver sends without a name.

        Only where names lead here: by the firewall alone such a connection would have been led.
        """
        pod = pod_in(head.target)
        may_be_named = self._cluster.dns or not self._cluster.iptables
        if not (aim.unnamed and may_be_named and requested_upgrade(head) is not None):
            raise RequestFailed(403, _NOTHING_TELLS)
        if pod is None or pod.verb not in _UPGRADED:
            raise RequestFailed(403, _NOTHING_TELLS)
        name = self._node_of_pod(head)
        if name is None:
            raise RequestFailed(
                503, f"the pod in the path is not known here (yet), and {_NOTHING_TELLS}"
            )
        node = self._cluster.nodes.get(name) or Node(name)
        return Destination(name, self._finder.address(node), node.kubelet_port)

    def _named(self, aim: Aim) -> Collection[Node]:
        """Return the nodes that the name in the ClientHello means."""
        return () if aim.server_name is None else self._called(aim.server_name)

    def _asked(self, head: RequestHead) -> set[str]:
        """Return the names of the nodes that ``Host`` means."""
        asked: set[str] = set()
        for value in head.values(b"host"):
            try:
                host = strip_port(value.decode("ascii", "backslashreplace"))
            except BadAuthority:
                continue
            asked.update(node.name for node in self._called(host))
        return asked

    def _called(self, host: str) -> Collection[Node]:
        """Return the nodes that ``host`` means, in its canonical form.

        One that the API has not told of may have proven its name by its certificate.
        """
        nodes = self._finder.meant(host)
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

    def _service_port(self, aim: Aim) -> int | None:
        """Return the port of this server's Service by which kube-proxy has led a connection here.

        ``None`` where it has not, as far as the kernel knows.
        """
        asked = aim.led_from
        services = self._cluster.services
        return None if asked is None else services.port_behind(asked.address, asked.port)

    def _warn_of_unlisted(self, exchange: IExchange) -> None:
        certificate = self._users.behind(exchange.transport)
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
    """Return whether kube-apiserver takes a request for an upgrade: with less than we ask for.

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
