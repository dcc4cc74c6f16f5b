"""Two streams joined: data, half-closes and back-pressure in both directions."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.relay import Flow
from yurttunnel.wire.codes import Code


def splice_streams(one: IStream, other: IStream) -> None:
    """Relay between two streams without a protocol.

    Each is the other's push producer. A half-close is forwarded, and so is a reset with its code
    and text.
    """
    one.registerProducer(Flow(other), True)
    other.registerProducer(Flow(one), True)
    one.attach(_Side(other))
    other.attach(_Side(one))


@implementer(IHalfCloseableProtocol)
class _Side(Protocol):
    """The protocol of one stream, which writes to ``other``."""

    def __init__(self, other: IStream) -> None:
        self._other = other
        # Looked up once, so that each piece is one call into the other stream.
        self.dataReceived = other.write  # type: ignore[method-assign] # see above

    def readConnectionLost(self) -> None:
        self._other.unregisterProducer()
        self._other.loseWriteConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: a half-close of the other stream caused this."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Close the other stream if both directions had ended, else reset it, with the reason."""
        other = self._other
        other.unregisterProducer()
        if isinstance(reason.value, ConnectionDone):
            other.loseConnection()
        elif isinstance(reason.value, StreamFailed):
            other.abort(reason.value.code, reason.value.text)
        else:
            other.abort(Code.CONNECTION_LOST, f"the stream that was joined broke: {reason.value}")
