"""Port-forward over SPDY: each connection is a pair of streams, for data and for errors.

The headers of a stream say of which kind it is (``streamtype``), to which port of the pod it leads
(``port``), and which other stream belongs to it (``requestid``). As there are no windows, a
connection whose local side stalls has its input kept, and once the budget is used up the input of
all others waits, too.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from yurtlab.node.interfaces import IPortForwarder
from yurtlab.node.streaming.connection import CREATION_TIMEOUT
from yurtlab.node.streaming.forwarded_connection import ForwardedConnection
from yurtlab.node.streaming.spdy_connection import IgnoringReceiver, SPDYConnection, SPDYStream
from yurttunnel.http.deadlines import Deadlines

_DATA: Final = b"data"
_ERROR: Final = b"error"
_LONGEST_REQUEST_ID: Final = 64


class SPDYForward:
    """The owner of a SPDY connection that carries a port-forward."""

    def __init__(self, clock: IReactorTime, forwarder: IPortForwarder) -> None:
        self.clock = clock
        self.connection = SPDYConnection(clock, self)
        self._forwarder = forwarder
        self._pairs: dict[bytes, _Pair] = {}
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
            pair = self._pairs[request_id] = _Pair(self, request_id, port)
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

    def complete(self, pair: _Pair, connection: ForwardedConnection) -> None:
        """Have the node connect a pair of which both streams are there."""
        self._incomplete.discard(pair)
        self._forwarder.connection_requested(pair.port, connection)

    def forget(self, pair: _Pair) -> None:
        """Forget a pair that is over, so that its identifier is free."""
        self._incomplete.discard(pair)
        if self._pairs.get(pair.request_id) is pair:
            del self._pairs[pair.request_id]

    def _too_late(self, pair: _Pair) -> None:
        pair.refuse("timed out waiting for streams")


class _Pair:
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
            stream.accept(_DataReceiver(self, self._connection))
        else:
            self._error = stream
            # Clients end it at once, and listen.
            stream.accept(IgnoringReceiver())
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

    @staticmethod
    def _end(stream: SPDYStream | None) -> None:
        if stream is not None:
            stream.finish()


class _DataReceiver:
    """The receiver of the data of a pair."""

    def __init__(self, pair: _Pair, connection: ForwardedConnection) -> None:
        self._pair = pair
        self._connection = connection

    def receive(self, data: bytes) -> None:
        """Take data."""
        self._connection.client_sent(data)

    def finish(self) -> None:
        """Take note of the end of the data."""
        self._connection.client_ended()
        self._pair.settle()

    def reset(self) -> None:
        """Take note that the client has given the connection up."""
        self._pair.finish()
        self._connection.client_reset()
        self._pair.settle()


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
