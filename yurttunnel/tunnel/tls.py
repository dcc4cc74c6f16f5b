"""TLS between the socket and :class:`~yurttunnel.tunnel.connection.SessionConnection`."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
    ISystemHandle,
)
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from yurttunnel.tunnel.sockets import tune_session_socket


def server_side(
    creator: IOpenSSLServerConnectionCreator, factory: IProtocolFactory, clock: IReactorTime
) -> TLSMemoryBIOFactory:
    """Put TLS under the protocols of ``factory``, as the side that accepts."""
    return TLSMemoryBIOFactory(creator, False, factory, clock)


@implementer(IStreamClientEndpoint)
class SessionEndpoint:
    """Speaks TLS to what ``endpoint`` leads to, over a socket set up for a session."""

    def __init__(
        self,
        creator: IOpenSSLClientConnectionCreator,
        endpoint: IStreamClientEndpoint,
        clock: IReactorTime,
    ) -> None:
        self._creator = creator
        self._endpoint = endpoint
        self._clock = clock

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect a protocol of ``protocolFactory``."""
        secured = TLSMemoryBIOFactory(self._creator, True, protocolFactory, self._clock)
        connected = self._endpoint.connect(secured)
        return connected.addCallback(_tuned)


def _tuned(protocol: TLSMemoryBIOProtocol) -> IProtocol:
    transport = protocol.transport
    if ISystemHandle.providedBy(transport):
        tune_session_socket(transport.getHandle())
    inner: IProtocol = protocol.wrappedProtocol
    return inner
