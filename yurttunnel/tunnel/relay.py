"""A local socket joined to a stream: bytes, half-closes and back-pressure both ways."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.transports import IHalfCloseableTransport
from yurttunnel.wire.codes import Code


@implementer(IHalfCloseableProtocol)
class LocalConnection(Protocol):
    """The protocol of a plain TCP or Unix socket that is to be joined to a stream.

    Subclasses decide in ``connectionMade`` or ``dataReceived`` when to call :meth:`join`. From
    then on no method of theirs sees a byte: each side's data goes straight into the other's
    ``write``, each side is the other's push producer, an end of one direction is passed on
    alone, and a side that breaks takes the other with it (a reset stream aborts the socket, a
    broken socket resets the stream).
    """

    transport: IHalfCloseableTransport
    stream: IStream | None = None
    lost: bool = False

    def join(self, stream: IStream, early: bytes = b"") -> None:
        """Relay between this socket and ``stream``, sending ``early`` bytes of the socket first.

        When the socket has gone in the meantime the stream is reset.
        """
        if self.lost:
            stream.abort(Code.CANCELLED, "the connection was closed while the stream was opened")
            return
        self.stream = stream
        # Found once, so that each read is one call into the stream.
        self.dataReceived = stream.write  # type: ignore[method-assign] # see above
        self.transport.resumeProducing()
        stream.registerProducer(Flow(self.transport), True)
        self.transport.registerProducer(Flow(stream), True)
        if early:
            stream.write(early)
        stream.attach(StreamSide(self))

    def readConnectionLost(self) -> None:
        """Pass the end of what the socket sends on to the stream."""
        if self.stream is None:
            # Nobody waits for an answer on a socket that ends before it is joined.
            self.transport.loseConnection()
        else:
            # Its transport must not be resumed after its end.
            self.stream.unregisterProducer()
            self.stream.loseWriteConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: it was this side that ended its direction."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End the stream with the socket: softly when both directions had ended."""
        self.lost = True
        stream, self.stream = self.stream, None
        if stream is None:
            return
        if isinstance(reason.value, ConnectionDone):
            stream.unregisterProducer()
            stream.loseConnection()
        else:
            stream.abort(Code.CONNECTION_LOST, f"the local connection broke: {reason.value}")


@implementer(IHalfCloseableProtocol)
class StreamSide(Protocol):
    """The stream's half of ``local``."""

    def __init__(self, local: LocalConnection) -> None:
        self.local = local
        # Found once, so that each piece is one call into the socket.
        self.dataReceived = local.transport.write  # type: ignore[method-assign] # see above

    def readConnectionLost(self) -> None:
        """Pass the end of what the stream sends on to the socket."""
        self.local.transport.unregisterProducer()
        self.local.transport.loseWriteConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: the socket's end caused it."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Close the socket: softly when both directions had ended, hard when not."""
        local = self.local
        if local.stream is None:
            return
        local.stream = None
        if isinstance(reason.value, ConnectionDone):
            local.transport.unregisterProducer()
            local.transport.loseConnection()
        else:
            local.transport.abortConnection()


@implementer(IPushProducer)
class Flow:
    """One side of a relay as the other side's producer.

    That its consumer is gone says nothing of how it went; ``connectionLost`` does, and follows.
    Until then the side is not ended: what broke must not look complete to whoever reads it.
    """

    def __init__(self, transport: IPushProducer) -> None:
        self._transport = transport

    def pauseProducing(self) -> None:
        """Read no more for now."""
        self._transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read again."""
        self._transport.resumeProducing()

    def stopProducing(self) -> None:
        """Read no more."""
        self._transport.pauseProducing()
