"""Two streams joined: what comes from the one goes to the other, both ways, and so do the ends."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.relay import Flow
from yurttunnel.wire.codes import Code


def splice_streams(one: IStream, other: IStream) -> None:
    """Relay between two streams that have no user yet.

    Each is the other's push producer, an end of one direction is passed on alone, and a reset
    with its code and text.
    """
    one.registerProducer(Flow(other), True)
    other.registerProducer(Flow(one), True)
    one.attach(_Side(other))
    other.attach(_Side(one))


@implementer(IHalfCloseableProtocol)
class _Side(Protocol):
    """The user of one stream, which writes to the ``other``."""

    def __init__(self, other: IStream) -> None:
        self._other = other
        # Found once, so that each piece is one call into the other stream.
        self.dataReceived = other.write  # type: ignore[method-assign] # see above

    def readConnectionLost(self) -> None:
        """Pass the end of one direction on."""
        self._other.unregisterProducer()
        self._other.loseWriteConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: the other stream's end caused it."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End the other stream: softly when both directions had ended, else for the same reason."""
        other = self._other
        other.unregisterProducer()
        if isinstance(reason.value, ConnectionDone):
            other.loseConnection()
        elif isinstance(reason.value, StreamFailed):
            other.abort(reason.value.code, reason.value.text)
        else:
            other.abort(Code.CONNECTION_LOST, f"the stream that was joined broke: {reason.value}")
