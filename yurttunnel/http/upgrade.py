"""Two connections joined after a 101: bytes, half-closes and back-pressure both ways."""

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
    """One of two connections: what ``transport`` receives is written to ``other``.

    An end of one direction is passed on alone where the other side is able to: TLS is not, and
    is closed. A side that breaks is aborted on the other, so that nothing looks complete that is
    not. ``closing`` bounds the time that a side has to take the last and to close.

    :func:`join` makes both; each begins when its connection is handed over.
    """

    transport: Any  # ITransport, its consumer and producer, and what sockets add to it

    def __init__(self, transport: Any, other: Any, closing: Deadlines[SplicedSide]) -> None:
        self.transport = transport
        self.other: SplicedSide
        # Found once, so that each read is one call into the other side's transport.
        self.dataReceived = other.write  # type: ignore[method-assign] # see above
        self._closing = closing
        self._half_closeable = not is_secure(transport)
        self._registered = False
        self._lost = False
        self._input_ended = False
        self._output_ended = False

    def connectionMade(self) -> None:
        """Have the other side paused while this one does not keep up."""
        if not self._output_ended:
            self._registered = True
            self.transport.registerProducer(self.other, True)

    def readConnectionLost(self) -> None:
        """Pass on that this side has ended what it sends."""
        self._input_ended = True
        self.other.end_output()
        if self._output_ended:
            # Sockets do not close by themselves when both directions have ended.
            self.close()

    def writeConnectionLost(self) -> None:
        """Do nothing: the end of the other side's direction caused it."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Close the other side: softly after a clean end, hard otherwise."""
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
        """End the sending direction of this side after what has been written."""
        if self._input_ended or not self._half_closeable:
            self.close()
        elif not self._lost:
            self._unregister()
            self.transport.loseWriteConnection()

    def close(self) -> None:
        """Close this side after what has been written; it has limited time for that."""
        if self._lost:
            return
        self._unregister()
        if self not in self._closing:
            self._closing.add(self)
        self.transport.loseConnection()
        # The other side may have paused it for good with its own end, and then nobody would see
        # that the peer has closed, too.
        self.resumeProducing()

    def close_overdue(self) -> None:
        """Abort."""
        self.transport.abortConnection()

    def pauseProducing(self) -> None:
        """Read no more for now."""
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read again, unless there is nothing more to come."""
        if not (self._input_ended or self._lost):
            self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """Read no more; how the other side is lost says what happens to this one."""
        self.pauseProducing()

    def _unregister(self) -> None:
        self._output_ended = True
        if self._registered:
            self._registered = False
            self.transport.unregisterProducer()


def join(one: Any, other: Any, closing: Deadlines[SplicedSide]) -> tuple[SplicedSide, SplicedSide]:
    """Make the protocols that join two transports, to be connected to them in whatever order."""
    sides = SplicedSide(one, other, closing), SplicedSide(other, one, closing)
    sides[0].other, sides[1].other = sides[1], sides[0]
    return sides
