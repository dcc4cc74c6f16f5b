"""The streams of a port-forward, by SPDY and in a WebSocket.

Over SPDY each connection is a pair of streams, for data and for errors. The headers of a stream
have its kind (``streamtype``), the port of the pod (``port``), and the ID that it shares with its
partner (``requestid``). As there are no windows, the input of a connection whose local side stalls
is buffered, and once the budget is used up the input of all others waits, too.

A WebSocket carries either SPDY (KEP-4006) or channels (v4.channel.k8s.io). In the latter case each
port has two channels, which make one connection: channel 2n carries the data of the nth port,
channel 2n + 1 its errors. The first message on either is the port, as a little-endian number of 16
bits. A single channel cannot be ended: both sides end all connections by closing the WebSocket,
this side when all have ended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, cast

from twisted.internet.interfaces import IAddress, IProducer, IProtocol, IPushProducer, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.node.interfaces import IPortForwarder
from yurtlab.node.streaming.connection import CREATION_TIMEOUT
from yurtlab.node.streaming.forwarded_connection import DATA, ERROR, ForwardedConnection
from yurtlab.node.streaming.spdy_connection import SPDYConnection, SPDYStream
from yurtlab.node.streaming.websocket import ChannelConnection, ChannelStream, WebSocketConnection
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.tunnel.transports import IHalfCloseableTransport

_MAX_REQUEST_ID_LENGTH: Final = 64


class SPDYForward(SPDYConnection):
    """The protocol of a SPDY connection that carries a port-forward."""

    def __init__(self, clock: IReactorTime, forwarder: IPortForwarder) -> None:
        super().__init__(clock)
        self._forwarder = forwarder
        self._connections: dict[bytes, ForwardedConnection] = {}
        self._incomplete = Deadlines(clock, CREATION_TIMEOUT, self._too_late)

    def stream_opened(self, stream: SPDYStream) -> None:
        """Pair the stream with its partner, and connect complete pairs."""
        kind = stream.headers.get(b"streamtype")
        port = _port(stream)
        request_id = stream.headers.get(b"requestid") or _derived_request_id(stream)
        if kind not in (DATA, ERROR) or port is None or len(request_id) > _MAX_REQUEST_ID_LENGTH:
            self.refuse(stream)
            return
        connection = self._connections.get(request_id)
        if connection is None:
            connection = ForwardedConnection(self, port, partial(self._remove, request_id))
            self._connections[request_id] = connection
            self._incomplete.add(connection)
        elif kind in connection.streams or connection.port != port:
            self.refuse(stream)
            return
        self.accept(stream)
        connection.add(kind, stream)
        if len(connection.streams) == 2:
            self._incomplete.discard(connection)
            self._forwarder.connection_requested(port, connection)

    def lost(self, reason: Failure) -> None:
        self._incomplete.stop()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.client_lost()

    def _remove(self, request_id: bytes, connection: ForwardedConnection) -> None:
        """Forget a connection that has ended, so that its ID is free."""
        self._incomplete.discard(connection)
        if self._connections.get(request_id) is connection:
            del self._connections[request_id]

    def _too_late(self, connection: ForwardedConnection) -> None:
        connection.refuse("timed out waiting for streams")


def _port(stream: SPDYStream) -> int | None:
    text = stream.headers.get(b"port", b"")
    if len(text) > 5 or not text.isdigit():
        return None
    return int(text) if 0 < int(text) < 65536 else None


def _derived_request_id(stream: SPDYStream) -> bytes:
    """Pair the streams of clients that send no request IDs, as the kubelet does.

    They open the error stream first, and the data stream next.
    """
    first = stream.stream_id - 2 if stream.headers.get(b"streamtype") == DATA else stream.stream_id
    return b"stream %d" % first


@implementer(IHalfCloseableTransport)
class WebSocketTunnel(WebSocketConnection):
    """The protocol of a WebSocket whose payload is the connection of another protocol.

    It is the transport of that protocol.
    """

    disconnecting = False

    def __init__(self, clock: IReactorTime, inner: IProtocol) -> None:
        super().__init__(clock)
        self._inner = inner

    def connectionMade(self) -> None:
        super().connectionMade()
        self._inner.makeConnection(self)

    def lost(self, reason: Failure) -> None:
        self._inner.connectionLost(reason)

    def payload_received(self, data: bytes, finished: bool) -> None:
        """Deliver the bytes; the boundaries of messages have no meaning."""
        if data:
            self._inner.dataReceived(data)

    # -- the transport -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.send_message(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send the pieces of ``data`` as one message."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self.disconnecting = True
        self.begin_close()

    # The close of a WebSocket ends the sending direction; the client's answer ends the other.
    loseWriteConnection = stopProducing = loseConnection

    def abortConnection(self) -> None:
        self.transport.abortConnection()

    def getPeer(self) -> IAddress:
        return self.transport.getPeer()

    def getHost(self) -> IAddress:
        return self.transport.getHost()

    def pauseProducing(self) -> None:
        self.pause_input()

    def resumeProducing(self) -> None:
        self.resume_input()

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register ``producer``, which pushes, to be paused while the client does not keep up."""
        if not streaming:
            raise ValueError("only producers that push are paused")
        # Cast, not adapted: sockets do not ask producers to declare what they are either.
        self.sources.add(cast("IPushProducer", producer))

    def unregisterProducer(self) -> None:
        self.sources.clear()


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
        self._ports = ports
        self._connections: list[ForwardedConnection] = []

    # -- IProtocol -----------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Send the ports, and then connect to them."""
        super().connectionMade()
        for index, port in enumerate(self._ports):
            connection = ForwardedConnection(self, port)
            error = ChannelStream(self, 2 * index + 1)
            connection.add(DATA, _DataStream(self, 2 * index, error))
            connection.add(ERROR, error)
            for stream in connection.streams.values():
                stream.write(_PORT.pack(port))
            self._connections.append(connection)
        for connection in self._connections:
            self._forwarder.connection_requested(connection.port, connection)

    def lost(self, reason: Failure) -> None:
        for connection in self._connections:
            connection.client_lost()

    def client_closed(self) -> None:
        """End every connection as if its socket were closed."""
        for connection in self._connections:
            connection.client_closed()


class _DataStream(ChannelStream):
    """The channel of a port's data, besides that of its errors."""

    def __init__(self, connection: ChannelConnection, number: int, error: ChannelStream) -> None:
        super().__init__(connection, number)
        self._error = error

    def reset(self) -> None:
        """Send an error for an abort: the end of the WebSocket alone would look like success."""
        self._error.write(b"the connection in the pod broke off")
        self.finish()
