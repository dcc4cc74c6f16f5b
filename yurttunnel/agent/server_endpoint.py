"""The endpoint of a server: TCP, with a timeout that includes resolution and all addresses."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP6ClientEndpoint
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.authority import join_authority
from yurttunnel.tunnel.named_endpoint import named_endpoint, to_ascii
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.sockets import TunedEndpoint, tune_session_socket

CONNECT_TIMEOUT = 10.0
"""Seconds for one attempt to connect to a server, including resolution and all addresses."""


class ConnectTimeout(Exception):
    """An attempt timed out; the text has the server and the timeout."""


@implementer(IStreamClientEndpoint)
class TimeoutEndpoint:
    """Limits an attempt through ``endpoint`` to ``seconds``, whatever it waits for.

    The timeout of Twisted's ``HostnameEndpoint`` applies to each address, and not to the resolution
    of the name. ``server`` is for the text of the error, :class:`ConnectTimeout`.
    """

    def __init__(
        self, clock: IReactorTime, endpoint: IStreamClientEndpoint, seconds: float, server: str
    ) -> None:
        self._clock = clock
        self._endpoint = endpoint
        self._seconds = seconds
        self._server = server

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect a protocol of ``protocolFactory``, with the timeout."""
        attempt = self._endpoint.connect(protocolFactory)
        return attempt.addTimeout(self._seconds, self._clock, self._timed_out)

    def _timed_out(self, result: object, seconds: float) -> Failure:
        return Failure(
            ConnectTimeout(
                f"no connection to {self._server} within {seconds:g} s, the lookup of its name"
                " included"
            )
        )


def server_endpoint(
    reactor: IReactor, host: str, port: int, skip: Callable[[], int] = lambda: 0
) -> TimeoutEndpoint:
    """Return the endpoint of a server, without TLS; raises ``ValueError`` for an invalid name.

    Each attempt dials the first ``skip()`` addresses of a name, modulo their number, last.
    """
    endpoint: IStreamClientEndpoint
    if "%" in host:
        # The endpoint for names would dial the address without its zone, which has no route.
        endpoint = TCP6ClientEndpoint(reactor, host, port, CONNECT_TIMEOUT)
    else:
        endpoint = named_endpoint(reactor, to_ascii(host), port, CONNECT_TIMEOUT, skip)
    tuned = TunedEndpoint(endpoint, tune_session_socket)
    return TimeoutEndpoint(reactor, tuned, CONNECT_TIMEOUT, join_authority(host, port))
