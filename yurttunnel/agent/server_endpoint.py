"""The endpoint of a server: TCP, with a timeout that includes resolution and all addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, TCP6ClientEndpoint
from twisted.internet.interfaces import (
    IAddress,
    IHostnameResolver,
    IHostResolution,
    IProtocol,
    IProtocolFactory,
    IReactorPluggableNameResolver,
    IReactorTime,
    IResolutionReceiver,
    IStreamClientEndpoint,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.authority import join_authority
from yurttunnel.tunnel.host_names import to_ascii
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


@implementer(IResolutionReceiver)
class _RotatedAddresses:
    """Passes the addresses of a name on to ``receiver``, the first ``skip`` of them last."""

    def __init__(self, receiver: IResolutionReceiver, skip: int) -> None:
        self.resolutionBegan = receiver.resolutionBegan
        self._receiver = receiver
        self._skip = skip
        self._addresses: list[IAddress] = []

    def addressResolved(self, address: IAddress) -> None:
        """Store an address."""
        self._addresses.append(address)

    def resolutionComplete(self) -> None:
        """Pass the addresses on."""
        first = self._skip % max(1, len(self._addresses))
        for address in self._addresses[first:] + self._addresses[:first]:
            self._receiver.addressResolved(address)
        self._receiver.resolutionComplete()


@implementer(IReactorPluggableNameResolver, IHostnameResolver)
class _RotatingReactor:
    """``reactor``, with a resolver that moves the first ``skip()`` addresses of a name to the end.

    Twisted's ``HostnameEndpoint`` always returns the first connection, also if the server there
    then does not respond, or is not the right one.
    """

    def __init__(self, reactor: IReactor, skip: Callable[[], int]) -> None:
        self._reactor = reactor
        self._skip = skip
        self.nameResolver = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def resolveHostName(
        self, resolutionReceiver: IResolutionReceiver, *args: Any, **kwargs: Any
    ) -> IHostResolution:
        """See ``IHostnameResolver``."""
        receiver = _RotatedAddresses(resolutionReceiver, self._skip())
        return self._reactor.nameResolver.resolveHostName(receiver, *args, **kwargs)


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
        endpoint = HostnameEndpoint(
            *(_RotatingReactor(reactor, skip), to_ascii(host), port),
            timeout=CONNECT_TIMEOUT,
            attemptDelay=0.25,
        )
    tuned = TunedEndpoint(endpoint, tune_session_socket)
    return TimeoutEndpoint(reactor, tuned, CONNECT_TIMEOUT, join_authority(host, port))
