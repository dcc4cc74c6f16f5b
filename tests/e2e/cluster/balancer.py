"""A balancer between a real kube-apiserver and several servers' sockets for HTTP CONNECT."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Factory, Protocol


class Balancer(Factory):
    """Forwards connections to the first of the sockets at ``paths()`` that accepts them."""

    noisy = False

    def __init__(self, reactor, paths: Callable[[], list[str]]) -> None:
        self._reactor = reactor
        self._paths = paths

    def buildProtocol(self, addr):
        """Accept a connection."""
        return _Side(self.connect)

    async def connect(self, caller) -> None:
        """Connect an accepted connection to a server."""
        caller.transport.pauseProducing()
        for path in self._paths():
            endpoint = UNIXClientEndpoint(self._reactor, path)
            try:
                await endpoint.connect(Factory.forProtocol(lambda: _Side(other=caller)))
            except ConnectError:
                continue
            return
        caller.transport.abortConnection()


class _Side(Protocol):
    """One side of a forwarded connection; ``begin`` connects the other one."""

    def __init__(self, begin=None, other=None) -> None:
        self._begin = begin
        self.other = other

    def connectionMade(self) -> None:
        if self._begin is not None:
            self._joining = Deferred.fromCoroutine(self._begin(self))
            return
        self.other.other = self
        for side in (self, self.other):
            side.transport.registerProducer(side.other.transport, True)
        self.other.transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        self.other.transport.write(data)

    def connectionLost(self, reason=None) -> None:
        if self.other is not None:
            self.transport.unregisterProducer()
            self.other.transport.loseConnection()
