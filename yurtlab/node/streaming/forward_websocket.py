"""Port-forward in a WebSocket: SPDY inside it (KEP-4006), or channels (v4.channel.k8s.io).

Of the channels each port has two, which make one connection. Channel 2n carries the data of the
nth port, channel 2n + 1 its errors; the first message on either is the port, as a little-endian
number of 16 bits. There is no end of one channel: the client learns of an end by that of the
WebSocket, when all of its connections have ended, and itself ends all of them so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, cast

from twisted.internet.interfaces import (
    IAddress,
    IProducer,
    IProtocol,
    IPushProducer,
    IReactorTime,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.node.interfaces import IPortForwarder
from yurtlab.node.streaming.forwarded_connection import ForwardedConnection
from yurtlab.node.streaming.websocket import ChannelConnection, WebSocketConnection
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


MAX_PORTS: Final = 127
"""A channel is one byte, and 255 is reserved."""

_PORT: Final = struct.Struct("<H")


class WebSocketForward(ChannelConnection):
    """The protocol of a WebSocket that carries a port-forward."""

    def __init__(
        self, clock: IReactorTime, forwarder: IPortForwarder, ports: Sequence[int]
    ) -> None:
        super().__init__(clock)
        self._forwarder = forwarder
        self._pairs = [_Pair(self, 2 * index, port) for index, port in enumerate(ports)]
        self._connections: list[ForwardedConnection] = []

    # -- IProtocol -----------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Name the ports, then have the node connect them."""
        super().connectionMade()
        address = self.transport.getPeer()
        for pair in self._pairs:
            self._connections.append(ForwardedConnection(self.clock, pair, address))
            self.send_channel(pair.channel, _PORT.pack(pair.port))
            self.send_channel(pair.channel + 1, _PORT.pack(pair.port))
        for pair, connection in zip(self._pairs, self._connections, strict=True):
            self._forwarder.connection_requested(pair.port, connection)

    def lost(self, reason: Failure) -> None:
        """Notify every connection."""
        for connection in self._connections:
            connection.client_lost()

    def channel_received(self, channel: int, data: bytes) -> None:
        """Hand data to its connection; nothing else is expected, and it is ignored."""
        index, is_error = divmod(channel, 2)
        if not is_error and index < len(self._connections):
            self._connections[index].client_sent(data)

    def client_closed(self) -> None:
        """End every connection as a socket that is closed."""
        for connection in self._connections:
            connection.client_closed()

    def pair_ended(self) -> None:
        """Close once no connection has anything to send any more."""
        if all(pair.ended for pair in self._pairs):
            self.begin_close()


class _Pair:
    """The channels of one port: its :class:`ForwardedChannels`."""

    def __init__(self, owner: WebSocketForward, channel: int, port: int) -> None:
        self.channel = channel
        self.port = port
        self.ended = False
        self.sources = owner.sources
        self.budget = owner.budget
        self._owner = owner

    def write(self, data: bytes) -> None:
        """Send data."""
        self._owner.send_channel(self.channel, data)

    def finish(self) -> None:
        """Take note that there is no more data."""
        self.ended = True
        self._owner.pair_ended()

    def reset(self) -> None:
        """Report that it broke off: the end of the WebSocket alone would look like success."""
        self.refuse("the connection in the pod broke off")

    def refuse(self, text: str) -> None:
        """Send ``text`` as the error."""
        self._owner.send_channel(self.channel + 1, text.encode())
        self.finish()
