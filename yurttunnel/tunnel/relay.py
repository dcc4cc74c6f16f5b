"""A local socket joined to a stream: data, half-closes and back-pressure in both directions."""

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
    then on their methods receive no data: each side writes directly to the other and is the other's
    push producer, a half-close is forwarded, and a side that breaks ends the other (a reset stream
    aborts the socket, a broken socket resets the stream).
    """

    transport: IHalfCloseableTransport
    stream: IStream | None = None
    lost: bool = False

    def join(self, stream: IStream, early: bytes = b"") -> None:
        """Relay between this socket and ``stream``; ``early`` is data of the socket to send first.

        If the socket has been closed meanwhile, the stream is reset.
        """
        if self.lost:
            stream.abort(Code.CANCELLED, "the connection was closed while the stream was opened")
            return
        self.stream = stream
        # Looked up once, so that each read is one call into the stream.
        self.dataReceived = stream.write  # type: ignore[method-assign] # see above
        self.transport.resumeProducing()
        stream.registerProducer(Flow(self.transport), True)
        self.transport.registerProducer(Flow(stream), True)
        if early:
            stream.write(early)
        stream.attach(StreamSide(self))

    def readConnectionLost(self) -> None:
        """Forward the half-close of the socket's peer to the stream."""
        if self.stream is None:
            # A socket that ends before it is joined expects no response.
            self.transport.loseConnection()
        else:
            # The transport must not be resumed after its end.
            self.stream.unregisterProducer()
            self.stream.loseWriteConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: this side has ended its direction."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Close the stream if both directions of the socket had ended, else abort it."""
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
    """The protocol of the stream that is joined to ``local``."""

    def __init__(self, local: LocalConnection) -> None:
        self.local = local
        # Looked up once, so that each piece is one call into the socket.
        self.dataReceived = local.transport.write  # type: ignore[method-assign] # see above

    def readConnectionLost(self) -> None:
        """Forward the half-close of the stream's peer to the socket."""
        self.local.transport.unregisterProducer()
        self.local.transport.loseWriteConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: a half-close of the socket caused this."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Close the socket if both directions of the stream had ended, else abort it."""
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

    ``stopProducing`` does not tell how the consumer ended; ``connectionLost``, which follows, does.
    Until then this side is only paused, so that a broken connection does not look complete.
    """

    def __init__(self, transport: IPushProducer) -> None:
        self._transport = transport

    def pauseProducing(self) -> None:
        self._transport.pauseProducing()

    def resumeProducing(self) -> None:
        self._transport.resumeProducing()

    def stopProducing(self) -> None:
        """Pause reading."""
        self._transport.pauseProducing()
