"""TLS between a socket and a protocol, with this package's transports or Twisted's."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.direct.tls import TLSFactory
from yurttunnel.tunnel.reactor import IReactor

ALPN = b"yurttunnel/1"
"""The protocol between agents and servers."""

SIBLING_ALPN = b"yurttunnel-sibling/1"
"""The protocol between servers: the same session protocol, but streams have another meaning."""


def server_side(
    reactor: IReactor, creator: IOpenSSLServerConnectionCreator, factory: IProtocolFactory
) -> Factory[Any]:
    """Wrap ``factory`` in TLS as the server side.

    If ``reactor`` is a :class:`DirectReactor`, this is the TLS of :mod:`yurttunnel.tunnel.direct`,
    else Twisted's.
    """
    if isinstance(reactor, DirectReactor):
        return TLSFactory(creator.serverConnectionForTLS, False, factory)
    return _TwistedTLSFactory(creator, False, factory, reactor)


def client_side(
    reactor: IReactor, creator: IOpenSSLClientConnectionCreator, factory: IProtocolFactory
) -> Factory[Any]:
    """Wrap ``factory`` in TLS as the client side."""
    if isinstance(reactor, DirectReactor):
        return TLSFactory(creator.clientConnectionForTLS, True, factory)
    return TLSMemoryBIOFactory(creator, True, factory, reactor)


class _TwistedTLSFactory(TLSMemoryBIOFactory):
    """A TLS factory that returns ``None`` if ``factory`` does, which Twisted's would wrap."""

    def buildProtocol(self, addr: IAddress | None) -> Any:
        protocol = self.wrappedFactory.buildProtocol(addr)
        return None if protocol is None else self.protocol(self, protocol)


@implementer(IStreamClientEndpoint)
class TLSEndpoint:
    """Connects by ``endpoint``, and adds TLS as the client."""

    def __init__(
        self,
        reactor: IReactor,
        creator: IOpenSSLClientConnectionCreator,
        endpoint: IStreamClientEndpoint,
    ) -> None:
        self._reactor = reactor
        self._creator = creator
        self._endpoint = endpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        secured = client_side(self._reactor, self._creator, protocolFactory)
        return self._endpoint.connect(secured).addCallback(_unwrapped)


def _unwrapped(protocol: Any) -> IProtocol:
    inner: IProtocol = protocol.wrappedProtocol
    return inner
