"""The middleware ``host-names``: the port without TLS against names that are made to lead here.

A web page may give its own name the address of this machine, and then ask this port in the name
of whoever looks at it (DNS rebinding); with fields of its own, since to the browser both are one
origin. What it cannot change is ``Host``, which has the name of the page.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.http.authority import BadAuthority, strip_port
from yurttunnel.http.head import HeadError, RequestHead
from yurttunnel.ops.rebinding import is_of_this_machine
from yurttunnel.server.interception.destination import (
    destination_of,
    named_node,
    names_destination,
)
from yurttunnel.server.interception.middleware import IMiddleware
from yurttunnel.server.interception.request import Handler, InterceptedRequest
from yurttunnel.server.registry import NodeNotConnected, SessionRegistry


@implementer(IMiddleware)
class HostNames:
    """Refuses requests without TLS that could be those of a page, if they would reach anybody.

    ``Host`` has to be an address, a name of this machine, or a name that an agent has proven or
    ``is_node`` knows. A destination that the connection itself has proven needs no ``Host``. It
    comes after what chooses the destination.
    """

    def __init__(
        self, registry: SessionRegistry, is_node: Callable[[str], bool] = lambda host: False
    ) -> None:
        self._registry = registry
        self._is_node = is_node

    def wrap(self, handler: Handler) -> Handler:
        """See :class:`IMiddleware`."""

        def checked(request: InterceptedRequest) -> None:
            exchange = request.exchange
            if not (exchange.secure or request.proven) and self._is_foreign(request):
                text = (
                    "Host is a name that is neither a node's nor this machine's, as in requests of"
                    " web pages: ask for an IP address or localhost, and say where to in"
                    " X-Tunnel-Proxy-Dest and X-Tunnel-Proxy-Host"
                )
                request.refusal = text
                exchange.fail(421, text)
                return
            handler(request)

        return checked

    def _is_foreign(self, request: InterceptedRequest) -> bool:
        head = request.exchange.head
        hosts = head.values(b"host")
        if all(is_of_this_machine(host) or self._is_known(host) for host in hosts):
            return False
        return _chooses(head) or self._reaches(request)

    def _is_known(self, value: bytes) -> bool:
        try:
            host = strip_port(value.decode("ascii"))
            session = self._registry.find(host)
        except (UnicodeDecodeError, BadAuthority):
            return False
        except NodeNotConnected:
            return self._is_node(host)
        # One that has been found may serve whatever nobody else does.
        return self._is_node(host) or host in (session.node, *session.identifiers.hosts)

    def _reaches(self, request: InterceptedRequest) -> bool:
        try:
            destination = request.destination or destination_of(request.exchange.head)
            self._registry.find(destination.node)
        except (HeadError, NodeNotConnected):
            # The proxy tells the caller what is the matter.
            return False
        return True


def _chooses(head: RequestHead) -> bool:
    """Say whether fields for the server choose the destination, and not ``Host``."""
    try:
        return names_destination(head) or bool(named_node(head))
    except HeadError:
        return True
