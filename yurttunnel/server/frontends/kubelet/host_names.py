"""The middleware ``host-names``: protects the port without TLS from pages in browsers.

A web page may resolve its own name to the address of this machine, and then send requests to this
port with the user's access (DNS rebinding), including custom fields, since both are the same origin
to the browser. It cannot change ``Host``, which is the name of the page. Nodes choose some of their
own names, so the name of the page may be a node's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from zope.interface import implementer

from yurttunnel.http.authority import BadAuthority, strip_port
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import HeadError, RequestHead
from yurttunnel.ops.host_check import is_cross_origin, names_this_machine
from yurttunnel.server.frontends.kubelet.destination import (
    destination_of,
    named_node,
    names_destination,
)
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.registry import SessionRegistry


@implementer(IMiddleware)
class HostNames:
    """Rejects requests without TLS that a page may have sent, if they would reach a node.

    ``Host`` must be an address or a name of this machine; then fields choose the node. Or it is a
    name that an agent has proven, or one of ``nodes_named``, and reaches only that node, whatever
    fields and paths contain. Pages of other sites are rejected, and the port by which a caller
    addresses this listener is never taken as a node's. A destination that the connection itself has
    proven is exempt. This runs after the middlewares that choose the destination.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        nodes_named: Callable[[str], Collection[str]] = lambda host: (),
    ) -> None:
        self._registry = registry
        self._nodes_named = nodes_named

    def wrap(self, handler: Handler) -> Handler:
        def checked(request: InterceptedRequest) -> None:
            exchange = request.exchange
            try:
                if not (exchange.secure or request.proven):
                    self._check(request)
            except RequestFailed as error:
                request.refusal = error.text
                exchange.fail(error.status, error.text)
                return
            handler(request)

        return checked

    def _check(self, request: InterceptedRequest) -> None:
        """Raise :class:`RequestFailed` if a page may have sent the request."""
        head = request.exchange.head
        hosts = head.values(b"host")
        sites, origins = head.values(b"sec-fetch-site"), head.values(b"origin")
        if is_cross_origin(b"".join(hosts), sites, origins):
            raise RequestFailed(403, "this port rejects requests from web pages")
        reached = self._reached_node(request)
        for host in hosts:
            if not names_this_machine(host):
                self._check_name(host, head, reached)
        if reached is not None and self._is_for_this_port(request):
            raise RequestFailed(
                421,
                "Host has a port of this server, which names no node: name the destination in"
                " X-Tunnel-Proxy-Dest, or in Host",
            )

    def _check_name(self, host: bytes, head: RequestHead, reached: str | None) -> None:
        nodes = self._nodes_of(host)
        if not nodes and (reached is not None or _chooses(head)):
            raise RequestFailed(
                421,
                "Host is neither a node's name nor this machine's, as in requests from web"
                " pages: use an IP address or localhost as Host, and name the destination in"
                " X-Tunnel-Proxy-Dest and X-Tunnel-Proxy-Host",
            )
        if reached is not None and reached not in nodes:
            raise RequestFailed(
                421,
                f"Host is a name of {' or '.join(sorted(nodes))}, and the request is for"
                f" {reached}: use an IP address or localhost as Host if X-Tunnel-Proxy-Dest,"
                " X-Tunnel-Proxy-Host or a pod names the node",
            )

    def _nodes_of(self, value: bytes) -> set[str]:
        """Return the names of the nodes with that name."""
        try:
            host = strip_port(value.decode("ascii"))
        except (UnicodeDecodeError, BadAuthority):
            return set()
        nodes = set(self._nodes_named(host))
        session = self._registry.find_or_none(host)
        # The session found may be the one that serves all unclaimed hosts.
        if session is not None and host in (session.node, *session.identifiers.hosts):
            nodes.add(session.node)
        return nodes

    def _reached_node(self, request: InterceptedRequest) -> str | None:
        try:
            destination = request.destination or destination_of(request.exchange.head)
            return str(self._registry.find(destination.node).node)
        except RequestFailed:
            # The proxy reports the error to the caller.
            return None

    def _is_for_this_port(self, request: InterceptedRequest) -> bool:
        head = request.exchange.head
        here = getattr(request.exchange.transport.getHost(), "port", None)
        destination = request.destination or destination_of(head)
        return destination.port == here and not names_destination(head)


def _chooses(head: RequestHead) -> bool:
    """Return whether fields for the server choose the destination, instead of ``Host``."""
    try:
        return names_destination(head) or bool(named_node(head))
    except HeadError:
        return True
