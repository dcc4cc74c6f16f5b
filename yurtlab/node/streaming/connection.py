"""What the connections of SPDY and WebSocket have in common: who writes, who reads, and the end."""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IDelayedCall, IHalfCloseableProtocol, IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.node.streaming.flow import InputBudget, Sources
from yurttunnel.tunnel.interfaces import IHalfCloseableTransport

CREATION_TIMEOUT: Final = 30.0
"""Seconds in which a client has to open the streams that belong together; kubelet's
DefaultStreamCreationTimeout."""

LINGER: Final = 30.0
"""Seconds of silence after which a client that has been sent everything is cut off. It is the
client that closes: kubectl loses what it has not read yet when a SPDY connection is closed under
it. While it reads slowly it goes on to send pings, each 5 seconds."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that closing may take."""

MAX_UNREAD_ANSWERS: Final = 64 * 1024
"""Bytes of answers to pings and refused streams that may wait for a client which reads nothing."""


@implementer(IHalfCloseableProtocol)
class StreamingConnection(Protocol):
    """A connection with a deadline for its end, one producer, and input that can be paused.

    Subclasses implement ``dataReceived``, beginning with :meth:`heard`, and :meth:`lost`.
    """

    log = Logger()

    transport: IHalfCloseableTransport

    def __init__(self, clock: IReactorTime) -> None:
        self.clock = clock
        self.sources = Sources()
        self.budget = InputBudget(self.pause_input, self.resume_input)
        self.is_lost = False
        self.closing = False
        self._lingering = False
        self._input_ended = False
        self._deadline: IDelayedCall | None = None
        self._unread_answers = 0

    # -- IProtocol -----------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Have those that write paused while the transport is full."""
        self.transport.registerProducer(self.sources, True)

    def readConnectionLost(self) -> None:
        """Close, too: clients end their directions by frames, and this one has gone."""
        self._input_ended = True
        self.close()

    def writeConnectionLost(self) -> None:
        """Do nothing: nobody here ends only this direction of the connection."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Stop the timers, and tell whoever streams."""
        self.end(reason)

    # -- for subclasses and their users --------------------------------------------------------

    def lost(self, reason: Failure) -> None:
        """The connection is gone; called once. For subclasses."""
        raise NotImplementedError

    def end(self, reason: Failure) -> None:
        """Be lost, also when the connection has never come: its request had ended before."""
        if self.is_lost:
            return
        self.is_lost = True
        self.closing = True
        self._cancel_deadline()
        self.sources.clear()
        self.lost(reason)

    def pause_input(self) -> None:
        """Read no more for now."""
        if not self.closing:
            self.transport.pauseProducing()

    def resume_input(self) -> None:
        """Read again."""
        if not self.closing:
            self.transport.resumeProducing()

    def answer(self, data: bytes) -> None:
        """Write what the client has provoked; cut it off when it reads none of that."""
        if self.sources.paused:
            self._unread_answers += len(data)
            if self._unread_answers > MAX_UNREAD_ANSWERS:
                self.log.warn("a client sends requests and does not read the answers")
                self.transport.abortConnection()
                return
        else:
            self._unread_answers = 0
        self.transport.write(data)

    def heard(self) -> None:
        """Note that the client is there."""
        if self._lingering and self._deadline is not None:
            self._deadline.reset(LINGER)

    def linger(self) -> None:
        """Wait for the client to close, as everything has been written."""
        if self.closing or self._lingering:
            return
        self._lingering = True
        self.transport.resumeProducing()
        self._deadline = self.clock.callLater(LINGER, self._overdue)

    def close(self) -> None:
        """Close after what has been written."""
        if self.closing:
            return
        self.closing = True
        self._lingering = False
        self._cancel_deadline()
        self._deadline = self.clock.callLater(CLOSE_TIMEOUT, self._overdue)
        # Closing waits for producers; and TLS, which ends both directions, for the client's end.
        self.transport.unregisterProducer()
        if not self._input_ended:
            # A socket that is read again after its end says again that it has ended.
            self.transport.resumeProducing()
        self.transport.loseConnection()

    def _overdue(self) -> None:
        self._deadline = None
        self.transport.abortConnection()

    def _cancel_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.cancel()
