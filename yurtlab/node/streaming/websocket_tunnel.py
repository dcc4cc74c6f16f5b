"""SPDY inside a WebSocket (KEP-4006): its bytes are the payload of binary messages, cut anyhow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from twisted.internet.interfaces import (
    IAddress,
    IProducer,
    IProtocol,
    IPushProducer,
    IReactorTime,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.node.streaming.websocket import WebSocketConnection
from yurttunnel.tunnel.interfaces import IHalfCloseableTransport


class WebSocketTunnel(WebSocketConnection):
    """The protocol of a WebSocket whose payload is the connection of another protocol."""

    def __init__(self, clock: IReactorTime, inner: IProtocol) -> None:
        super().__init__(clock)
        self._inner = inner

    def connectionMade(self) -> None:
        """Connect the inner protocol."""
        super().connectionMade()
        self._inner.makeConnection(_TunnelTransport(self))

    def lost(self, reason: Failure) -> None:
        """Notify the inner protocol."""
        self._inner.connectionLost(reason)

    def payload_received(self, data: bytes, finished: bool) -> None:
        """Hand on the bytes; where messages end means nothing."""
        if data:
            self._inner.dataReceived(data)


@implementer(IHalfCloseableTransport)
class _TunnelTransport:
    """What the inner protocol sees of the WebSocket."""

    disconnecting = False

    def __init__(self, tunnel: WebSocketTunnel) -> None:
        self._tunnel = tunnel

    def write(self, data: bytes) -> None:
        """Send ``data`` as one message."""
        self._tunnel.send_message(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send the pieces of ``data`` as one message."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close the WebSocket."""
        self.disconnecting = True
        self._tunnel.begin_close()

    # The close of a WebSocket ends the sending direction; the client's answer ends the other.
    loseWriteConnection = loseConnection

    def abortConnection(self) -> None:
        """Close at once."""
        self._tunnel.transport.abortConnection()

    def getPeer(self) -> IAddress:
        """Return the client's address."""
        return self._tunnel.transport.getPeer()

    def getHost(self) -> IAddress:
        """Return the address of this end."""
        return self._tunnel.transport.getHost()

    def pauseProducing(self) -> None:
        """Read no more for now."""
        self._tunnel.pause_input()

    def resumeProducing(self) -> None:
        """Read again."""
        self._tunnel.resume_input()

    def stopProducing(self) -> None:
        """Close the WebSocket."""
        self.loseConnection()

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Pause ``producer``, which pushes, while the client does not keep up."""
        if not streaming:
            raise ValueError("only producers that push are paused")
        # Cast, not adapted: sockets do not ask producers to declare what they are either.
        self._tunnel.sources.add(cast("IPushProducer", producer))

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self._tunnel.sources.clear()
