"""The streams of a port-forward, by SPDY and in a WebSocket.

Over SPDY each connection is a pair of streams, for data and for errors. The headers of a stream
say of which kind it is (``streamtype``), to which port of the pod it leads (``port``), and which
other stream belongs to it (``requestid``). As there are no windows, a connection whose local side
stalls has its input kept, and once the budget is used up the input of all others waits, too.

In a WebSocket there is either SPDY (KEP-4006), or there are channels (v4.channel.k8s.io). Of these
each port has two, which make one connection. Channel 2n carries the data of the nth port, channel
2n + 1 its errors; the first message on either is the port, as a little-endian number of 16 bits.
There is no end of one channel: the client learns of an end by that of the WebSocket, when all of
its connections have ended, and itself ends all of them so.
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
from yurtlab.node.streaming.connection import CREATION_TIMEOUT
from yurtlab.node.streaming.forwarded_connection import ForwardedConnection
from yurtlab.node.streaming.spdy_connection import SPDYConnection, SPDYStream
from yurtlab.node.streaming.websocket import ChannelConnection, WebSocketConnection
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.tunnel.interfaces import IHalfCloseableTransport

_DATA: Final = b"data"
_ERROR: Final = b"error"
_LONGEST_REQUEST_ID: Final = 64


class SPDYForward:
    """The owner of a SPDY connection that carries a port-forward."""

    def __init__(self, clock: IReactorTime, forwarder: IPortForwarder) -> None:
        self.clock = clock
        self.connection = SPDYConnection(clock, self)
        self._forwarder = forwarder
        self._pairs: dict[bytes, _StreamPair] = {}
        self._incomplete = Deadlines(clock, CREATION_TIMEOUT, self._too_late)

    # -- StreamOwner ---------------------------------------------------------------------------

    def stream_opened(self, stream: SPDYStream) -> None:
        """Pair the stream with the one that belongs to it."""
        kind = stream.headers.get(b"streamtype")
        port = _port(stream)
        request_id = stream.headers.get(b"requestid") or _derived_request_id(stream)
        if kind not in (_DATA, _ERROR) or port is None or len(request_id) > _LONGEST_REQUEST_ID:
            stream.refuse()
            return
        pair = self._pairs.get(request_id)
        if pair is None:
            pair = self._pairs[request_id] = _StreamPair(self, request_id, port)
            self._incomplete.add(pair)
        elif not pair.lacks(kind) or pair.port != port:
            stream.refuse()
            return
        pair.add(kind, stream)

    def connection_lost(self, reason: Failure) -> None:
        """Notify every connection."""
        self._incomplete.stop()
        pairs, self._pairs = self._pairs, {}
        for pair in pairs.values():
            pair.client_lost()

    # -- for the pairs -------------------------------------------------------------------------

    def complete(self, pair: _StreamPair, connection: ForwardedConnection) -> None:
        """Have the node connect a pair of which both streams are there."""
        self._incomplete.discard(pair)
        self._forwarder.connection_requested(pair.port, connection)

    def forget(self, pair: _StreamPair) -> None:
        """Forget a pair that is over, so that its identifier is free."""
        self._incomplete.discard(pair)
        if self._pairs.get(pair.request_id) is pair:
            del self._pairs[pair.request_id]

    def _too_late(self, pair: _StreamPair) -> None:
        pair.refuse("timed out waiting for streams")


class _StreamPair:
    """Two streams that make one connection: its :class:`ForwardedChannels`."""

    def __init__(self, owner: SPDYForward, request_id: bytes, port: int) -> None:
        self.request_id = request_id
        self.port = port
        self.sources = owner.connection.sources
        self.budget = owner.connection.budget
        self._owner = owner
        self._error: SPDYStream | None = None
        self._data: SPDYStream | None = None
        self._connection: ForwardedConnection | None = None

    def lacks(self, kind: bytes) -> bool:
        """Return whether the stream of this ``kind`` is not there yet."""
        return (self._data if kind == _DATA else self._error) is None

    def add(self, kind: bytes, stream: SPDYStream) -> None:
        """Take one of the two streams."""
        if self._connection is None:
            address = self._owner.connection.transport.getPeer()
            self._connection = ForwardedConnection(self._owner.clock, self, address)
        if kind == _DATA:
            self._data = stream
            stream.accept(self._connection.input.receive, self._data_ended, self._data_reset)
        else:
            self._error = stream
            # Clients end it at once, and listen.
            stream.accept()
        if self._data is not None and self._error is not None:
            self._owner.complete(self, self._connection)

    def client_lost(self) -> None:
        """Notify the connection that its client has gone."""
        if self._connection is not None:
            self._connection.client_lost()

    def settle(self) -> None:
        """Forget the pair once both directions of its data have ended."""
        data = self._data
        if data is not None and not data.sending and not data.receiving:
            self._owner.forget(self)

    # -- ForwardedChannels ---------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send data."""
        if self._data is not None:
            self._data.write(data)

    def finish(self) -> None:
        """End the data, and the errors: kubectl waits for both before it closes its side."""
        self._end(self._error)
        self._end(self._data)
        self.settle()

    def reset(self) -> None:
        """Reset the data; an error would have kubectl give up all of the port-forward."""
        self._end(self._error)
        if self._data is not None:
            self._data.reset()
        self.settle()

    def refuse(self, text: str) -> None:
        """Send ``text`` as the error, and end both streams."""
        if self._error is not None:
            self._error.write(text.encode())
        self._owner.forget(self)
        self._end(self._error)
        self._end(self._data)

    # -- the stream of the data ----------------------------------------------------------------

    def _data_ended(self) -> None:
        if self._connection is not None:
            self._connection.input.finish()
        self.settle()

    def _data_reset(self) -> None:
        self.finish()
        if self._connection is not None:
            self._connection.client_reset()
        self.settle()

    @staticmethod
    def _end(stream: SPDYStream | None) -> None:
        if stream is not None:
            stream.finish()


def _port(stream: SPDYStream) -> int | None:
    text = stream.headers.get(b"port", b"")
    if len(text) > 5 or not text.isdigit():
        return None
    return int(text) if 0 < int(text) < 65536 else None


def _derived_request_id(stream: SPDYStream) -> bytes:
    """Pair the streams of clients that number no requests, as kubelet does.

    They open the error stream first, and the data stream next.
    """
    first = stream.stream_id - 2 if stream.headers.get(b"streamtype") == _DATA else stream.stream_id
    return b"stream %d" % first


class WebSocketTunnel(WebSocketConnection):
    """The protocol of a WebSocket whose payload is the connection of another protocol."""

    def __init__(self, clock: IReactorTime, inner: IProtocol) -> None:
        super().__init__(clock)
        self._inner = inner

    def connectionMade(self) -> None:
        super().connectionMade()
        self._inner.makeConnection(_TunnelTransport(self))

    def lost(self, reason: Failure) -> None:
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
        self._tunnel.send_message(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send the pieces of ``data`` as one message."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self.disconnecting = True
        self._tunnel.begin_close()

    # The close of a WebSocket ends the sending direction; the client's answer ends the other.
    loseWriteConnection = loseConnection

    def abortConnection(self) -> None:
        self._tunnel.transport.abortConnection()

    def getPeer(self) -> IAddress:
        return self._tunnel.transport.getPeer()

    def getHost(self) -> IAddress:
        return self._tunnel.transport.getHost()

    def pauseProducing(self) -> None:
        self._tunnel.pause_input()

    def resumeProducing(self) -> None:
        self._tunnel.resume_input()

    def stopProducing(self) -> None:
        self.loseConnection()

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Pause ``producer``, which pushes, while the client does not keep up."""
        if not streaming:
            raise ValueError("only producers that push are paused")
        # Cast, not adapted: sockets do not ask producers to declare what they are either.
        self._tunnel.sources.add(cast("IPushProducer", producer))

    def unregisterProducer(self) -> None:
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
        self._pairs = [_ChannelPair(self, 2 * index, port) for index, port in enumerate(ports)]
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
        for connection in self._connections:
            connection.client_lost()

    def channel_received(self, channel: int, data: bytes) -> None:
        """Hand data to its connection; nothing else is expected, and it is ignored."""
        index, is_error = divmod(channel, 2)
        if not is_error and index < len(self._connections):
            self._connections[index].input.receive(data)

    def client_closed(self) -> None:
        """End every connection as a socket that is closed."""
        for connection in self._connections:
            connection.client_closed()

    def pair_ended(self) -> None:
        """Close once no connection has anything to send any more."""
        if all(pair.ended for pair in self._pairs):
            self.begin_close()


class _ChannelPair:
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
