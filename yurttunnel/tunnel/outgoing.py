"""A reactor whose outgoing connections are prepared before they are begun."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import (
    IConnector,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorTime,
)
from zope.interface import implementer

from yurttunnel.tunnel.reactor import IReactor


@implementer(IReactorTCP, IReactorTime, IReactorPluggableNameResolver)
class PreparingReactor:
    """Passes everything on to ``reactor``, whose transports are Twisted's.

    ``prepare`` is given the socket of each TCP connection to an address, before any packet.
    """

    def __init__(self, reactor: IReactor, prepare: Callable[[socket.socket], object]) -> None:
        self._reactor = reactor
        self._prepare = prepare

    def __getattr__(self, name: str) -> Any:
        """Be the reactor in everything else."""
        return getattr(self._reactor, name)

    def connectTCP(self, *arguments: Any, **options: Any) -> IConnector:
        """Connect as ``IReactorTCP`` says."""
        connector: Any = self._reactor.connectTCP(*arguments, **options)
        # Twisted's client has its socket at once, and connects it in the next turn. There is none
        # when all descriptors are in use.
        if getattr(connector.transport, "socket", None) is not None:
            self._prepare(connector.transport.getHandle())
        made: IConnector = connector
        return made
