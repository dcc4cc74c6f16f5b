"""Two connections joined after a 101: data, half-closes and back-pressure in both directions."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.connection import is_secure
from yurttunnel.http.deadlines import Deadlines


@implementer(IHalfCloseableProtocol, IPushProducer)
class SplicedSide(Protocol):
    """One of two connections: data that ``transport`` receives is written to ``other``.

    A half-close is forwarded if the other side supports it; over TLS it is not supported, and the
    connection is closed. If one side breaks the other is aborted, so that nothing incomplete looks
    complete. ``closing`` limits the time for a side to receive the remaining data and to close.

    :func:`join` creates both; each starts when its connection is handed over.
    """

    transport: Any  # ITransport, its consumer and producer, and what sockets add to it

    def __init__(self, transport: Any, other: Any, closing: Deadlines[SplicedSide]) -> None:
        self.transport = transport
        self.other: SplicedSide
        # Looked up once, so that each read is one call into the other side's transport.
        self.dataReceived = other.write  # type: ignore[method-assign] # see above
        self._closing = closing
        self._half_closeable = not is_secure(transport)
        self._registered = False
        self._lost = False
        self._input_ended = False
        self._output_ended = False

    def connectionMade(self) -> None:
        """Register the other side as producer, to be paused while this side does not keep up."""
        if not self._output_ended:
            self._registered = True
            self.transport.registerProducer(self.other, True)

    def readConnectionLost(self) -> None:
        """Forward the half-close of this side's peer."""
        self._input_ended = True
        self.other.end_output()
        if self._output_ended:
            # Sockets do not close by themselves when both directions have ended.
            self.close()

    def writeConnectionLost(self) -> None:
        """Do nothing: a half-close of the other side caused this."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Close the other side after a clean end, else abort it."""
        self._lost = True
        self._registered = False
        self._closing.discard(self)
        if self.other._lost:
            return
        if isinstance(reason.value, ConnectionDone):
            self.other.close()
        else:
            self.other.transport.abortConnection()

    def end_output(self) -> None:
        """End the sending direction of this side once written data is flushed."""
        if self._input_ended or not self._half_closeable:
            self.close()
        elif not self._lost:
            self._unregister()
            self.transport.loseWriteConnection()

    def close(self) -> None:
        """Close this side once written data is flushed, with a timeout."""
        if self._lost:
            return
        self._unregister()
        if self not in self._closing:
            self._closing.add(self)
        self.transport.loseConnection()
        # The other side may have paused this one permanently when it ended; then the close of this
        # side's peer would not be noticed.
        self.resumeProducing()

    def close_overdue(self) -> None:
        """Abort after the timeout."""
        self.transport.abortConnection()

    def pauseProducing(self) -> None:
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume reading, unless the input has ended."""
        if not (self._input_ended or self._lost):
            self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """Pause reading; ``connectionLost`` of the other side decides how this one ends."""
        self.pauseProducing()

    def _unregister(self) -> None:
        self._output_ended = True
        if self._registered:
            self._registered = False
            self.transport.unregisterProducer()


def join(one: Any, other: Any, closing: Deadlines[SplicedSide]) -> tuple[SplicedSide, SplicedSide]:
    """Return the protocols that join two transports; they may be connected in any order."""
    sides = SplicedSide(one, other, closing), SplicedSide(other, one, closing)
    sides[0].other, sides[1].other = sides[1], sides[0]
    return sides
