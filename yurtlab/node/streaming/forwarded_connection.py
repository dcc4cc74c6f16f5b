"""A connection of a port-forward: the offer to the node, and the transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IProducer,
    IProtocol,
    IPushProducer,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.node.interfaces import IForwardedConnection
from yurtlab.node.streaming.connection import InputGate, Stream, StreamingConnection, ignore
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.transports import IHalfCloseableTransport

DATA: Final = b"data"
ERROR: Final = b"error"
"""The two streams of a connection, as SPDY's headers name them."""


@implementer(IForwardedConnection, IHalfCloseableTransport)
class ForwardedConnection:
    """A connection that a client forwards to ``port``, before and after the node has accepted it.

    Like a socket, it never calls ``connectionLost`` from within a method that its user calls.
    Input is buffered until a protocol is attached. Its ``streams`` are added as they are opened,
    and all streams of the client are on the same ``connection``. ``over(self)`` is called,
    perhaps more than once, when the data stream has ended in both directions.
    """

    # Twisted's convention for a transport that is being closed.
    disconnecting = False

    def __init__(
        self,
        connection: StreamingConnection,
        port: int,
        over: Callable[[ForwardedConnection], object] = ignore,
    ) -> None:
        self.port = port
        self.streams: dict[bytes, Stream] = {}
        self._clock = connection.clock
        self._sources = connection.sources
        self._address = connection.transport.getPeer()
        self._over = over
        self._input = InputGate(connection.budget)
        self._protocol: IProtocol | None = None
        self._producer: IPushProducer | None = None
        self._sending = True
        self._receiving = True
        self._end: Failure | None = None

    # -- IForwardedConnection ------------------------------------------------------------------

    def accept(self) -> IStream:
        """Return the client's side as a transport."""
        # It has all that joining it to a socket needs of a stream.
        return self  # type: ignore[return-value] # see above

    def refuse(self, text: str) -> None:
        """Send the error on the client's error stream, and end both streams."""
        if self._sending:
            self._input.discard()
            if ERROR in self.streams:
                self.streams[ERROR].write(text.encode())
            self._over(self)
            self._finish_sending()

    def attach(self, protocol: IProtocol) -> None:
        """Connect ``protocol``, and deliver the buffered input to it; called once."""
        self._protocol = protocol
        protocol.makeConnection(self)
        if self._end is not None:
            self._clock.callLater(0, self._report_end)
        else:
            self._input.begin(self._deliver, self._input_ended)

    # -- from the client -----------------------------------------------------------------------

    def add(self, kind: bytes, stream: Stream) -> None:
        """Use ``stream`` for :data:`DATA` or :data:`ERROR`."""
        self.streams[kind] = stream
        # On the error stream clients end their direction at once, and only read.
        if kind == DATA:
            stream.receive, stream.ended = self._input.receive, self._data_ended
            stream.was_reset = self._data_reset

    def client_closed(self) -> None:
        """Handle a reset: the client neither sends nor reads any more."""
        self._sending = False
        self._input.finish()

    def client_lost(self) -> None:
        """Handle that the client is gone, perhaps after both directions had ended."""
        if self._sending or not self._input.complete:
            self._lose(Failure(ConnectionLost("the client of the port-forward has gone")))

    def _data_ended(self) -> None:
        self._input.finish()
        self._settle_data()

    def _data_reset(self) -> None:
        self._finish_sending()
        self._lose(Failure(ConnectionLost("the client has aborted the connection")))

    # -- ITransport ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if isinstance(data, str):
            raise TypeError("a connection carries bytes, not text")
        if self._sending:
            self.streams[DATA].write(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseWriteConnection(self) -> None:
        """End this direction; the other goes on."""
        if self._sending:
            self._finish_sending()
            self._clock.callLater(0, self._sending_ended)

    def loseConnection(self) -> None:
        """End this direction, and discard input."""
        if self.disconnecting or self._end is not None:
            return
        self.disconnecting = True
        self._input.discard()
        if self._sending:
            self._finish_sending()
        self._set_end(Failure(ConnectionDone()))

    def abortConnection(self) -> None:
        """Abort, so that the output does not look complete."""
        if self._end is None:
            self._sending = False
            self._input.discard()
            # No error message: with one kubectl ends the whole port-forward.
            self.streams[ERROR].finish()
            self.streams[DATA].reset()
            self._settle_data()
            self._set_end(Failure(ConnectionAborted()))

    def abort(self, code: object, text: str) -> None:
        """Abort; errors of other connections do not concern this client."""
        self.abortConnection()

    def getPeer(self) -> IAddress:
        return self._address

    def getHost(self) -> IAddress:
        """Return the client's name as well: this end has no address of its own."""
        return self._address

    # -- IPushProducer: what comes from the client ---------------------------------------------

    def pauseProducing(self) -> None:
        self._input.shut()

    def resumeProducing(self) -> None:
        self._input.open()

    def stopProducing(self) -> None:
        """Close the connection: its consumer is gone."""
        self.loseConnection()

    # -- IConsumer: what goes to the client ----------------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register ``producer``, which is paused while the client does not keep up.

        Raises ``ValueError`` for a pull producer, which is not supported.
        """
        if self._producer is not None:
            raise RuntimeError(f"{self!r} already has a producer")
        if not streaming:
            raise ValueError("only producers that push are paused")
        if self._end is not None:
            producer.stopProducing()
            return
        # Cast, not adapted: sockets do not ask producers to declare what they are either.
        self._producer = cast("IPushProducer", producer)
        self._sources.add(self._producer)

    def unregisterProducer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            self._sources.discard(producer)

    # -- helpers -------------------------------------------------------------------------------

    def _deliver(self, data: bytes) -> None:
        # Looked up at each call, because protocols may replace their dataReceived.
        self._protocol.dataReceived(data)  # type: ignore[union-attr] # the gate is shut before

    def _input_ended(self) -> None:
        self._receiving = False
        if IHalfCloseableProtocol.providedBy(self._protocol):
            IHalfCloseableProtocol(self._protocol).readConnectionLost()
            self._settle()
        else:
            self.loseConnection()

    def _finish_sending(self) -> None:
        """End the errors, and the data: kubectl waits for both before it closes its side."""
        self._sending = False
        for kind in (ERROR, DATA):
            if kind in self.streams:
                self.streams[kind].finish()
        self._settle_data()

    def _settle_data(self) -> None:
        data = self.streams.get(DATA)
        if data is not None and not data.sending and not data.receiving:
            self._over(self)

    def _sending_ended(self) -> None:
        if self._end is None and IHalfCloseableProtocol.providedBy(self._protocol):
            IHalfCloseableProtocol(self._protocol).writeConnectionLost()
        self._settle()

    def _settle(self) -> None:
        if not self._sending and not self._receiving and self._end is None:
            self._set_end(Failure(ConnectionDone()))

    def _lose(self, reason: Failure) -> None:
        if self._end is None:
            self._sending = False
            self._input.discard()
            self._set_end(reason)

    def _set_end(self, reason: Failure) -> None:
        self._end = reason
        self._clock.callLater(0, self._report_end)

    def _report_end(self) -> None:
        producer = self._producer
        self.unregisterProducer()
        protocol, self._protocol = self._protocol, None
        if protocol is None or self._end is None:
            return
        if producer is not None:
            producer.stopProducing()
        protocol.connectionLost(self._end)
