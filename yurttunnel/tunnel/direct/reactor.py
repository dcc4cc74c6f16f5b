"""A reactor that replaces Twisted's transports by those of this package."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import (
    IConnector,
    IListeningPort,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorTime,
)
from twisted.internet.tcp import Port
from zope.interface import implementer

from yurttunnel.tunnel.direct.connector import SocketConnector
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.ports import take_over
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.transports import IRounds

TRANSPORTS = ("direct", "twisted")


@implementer(IReactor, IRounds)
class DirectReactor:
    """Delegates to ``reactor``, except for the creation of connections.

    Users of a reactor (endpoints, listeners, the dialer) see no other difference. Targets must be
    addresses; endpoints resolve names before they connect. ``prepare`` is called with the socket of
    each outgoing connection before any packet is sent.
    """

    def __init__(
        self, reactor: IReactor, prepare: Callable[[socket.socket], object] | None = None
    ) -> None:
        self._reactor = reactor
        self._prepare = prepare
        self._descriptors = DescriptorSet(reactor)
        # Looked up once: these are called for each piece of data.
        self.seconds = reactor.seconds
        self.callLater = self._descriptors.callLater
        self.at_end_of_round = self._descriptors.at_end_of_round
        self.call_soon = self._descriptors.call_soon

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the reactor."""
        return getattr(self._reactor, name)

    def take_over(self, port: Port) -> None:
        """Serve a port that does not listen yet, and its connections."""
        take_over(port, self._descriptors)

    def getReaders(self) -> list[Any]:
        return [*self._descriptors.readers(), *self._reactor.getReaders()]

    def getWriters(self) -> list[Any]:
        return [*self._descriptors.writers(), *self._reactor.getWriters()]

    def listenTCP(
        self, port: int, factory: Any, backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        listening = Port(port, factory, backlog, interface, self._reactor)
        self.take_over(listening)
        listening.startListening()
        return listening

    def connectTCP(
        self,
        host: str,
        port: int,
        factory: Any,
        timeout: float = 30,
        bindAddress: tuple[str, int] | None = None,
    ) -> IConnector:
        """Connect to an address; raises ``OSError`` if ``host`` is not one."""
        if bindAddress is not None:
            raise ValueError("a local address cannot be chosen")
        connector = SocketConnector(self._descriptors, host, port, factory, timeout, self._prepare)
        connector.connect()
        return connector


@implementer(IReactorTCP, IReactorTime, IReactorPluggableNameResolver)
class PreparingReactor:
    """Delegates to ``reactor``, with Twisted's transports.

    ``prepare`` is called with the socket of each TCP connection to an address before any packet is
    sent.
    """

    def __init__(self, reactor: IReactor, prepare: Callable[[socket.socket], object]) -> None:
        self._reactor = reactor
        self._prepare = prepare

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the reactor."""
        return getattr(self._reactor, name)

    def connectTCP(self, *arguments: Any, **options: Any) -> IConnector:
        connector: Any = self._reactor.connectTCP(*arguments, **options)
        # Twisted's client creates its socket at once, and connects it in the next iteration. There
        # is no socket if the process is out of file descriptors.
        if getattr(connector.transport, "socket", None) is not None:
            self._prepare(connector.transport.getHandle())
        made: IConnector = connector
        return made


def with_transports(
    reactor: IReactor, name: str, prepare: Callable[[socket.socket], object] | None = None
) -> Any:
    """Return ``reactor`` with the transports ``name``: this package's, or Twisted's own.

    ``prepare`` is called with the socket of each outgoing TCP connection before any packet is sent.
    """
    if name == "direct":
        return DirectReactor(reactor, prepare)
    return reactor if prepare is None else PreparingReactor(reactor, prepare)
