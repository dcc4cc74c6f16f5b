"""The common parts of SPDY and WebSocket connections: flow control in both directions, and closing.

Neither SPDY as Kubernetes uses it nor WebSocket lets a receiver pause one stream. Input for a
paused stream is buffered, up to a limit for the connection; beyond that the connection is not read,
which also pauses its other streams. Output shares one transport: when it is full all its producers
are paused, and when it has room they are resumed in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import (
    IDelayedCall,
    IHalfCloseableProtocol,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.timers import cancel
from yurttunnel.tunnel.transports import IHalfCloseableTransport

MAX_BUFFERED: Final = 256 * 1024
"""The maximum size in bytes of a connection's buffered input for paused streams; one more read of
its transport may exceed it."""


@implementer(IPushProducer)
class ProducerGroup:
    """All producers for one transport, registered with it as a single push producer."""

    def __init__(self) -> None:
        # Whether each producer is paused; those that were resumed last come last.
        self._producers: dict[IPushProducer, bool] = {}
        self.paused = False

    def add(self, producer: IPushProducer) -> None:
        """Register ``producer``, which is paused while the transport is full, perhaps at once."""
        self._producers[producer] = self.paused
        if self.paused:
            producer.pauseProducing()

    def discard(self, producer: IPushProducer) -> None:
        """Unregister ``producer``."""
        self._producers.pop(producer, None)

    def clear(self) -> None:
        """Unregister all."""
        self._producers.clear()

    def pauseProducing(self) -> None:
        self.paused = True
        for producer, is_paused in list(self._producers.items()):
            if not is_paused and producer in self._producers:
                self._producers[producer] = True
                producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume producers one by one until the transport is full again."""
        self.paused = False
        for producer, is_paused in list(self._producers.items()):
            if self.paused:
                return
            if is_paused and producer in self._producers:
                del self._producers[producer]
                self._producers[producer] = False
                producer.resumeProducing()

    def stopProducing(self) -> None:
        """Unregister all: the transport is gone, of which its protocol is notified."""
        self.clear()


class InputBudget:
    """Counts the buffered input of a connection, and pauses its reading beyond ``limit`` bytes."""

    def __init__(
        self, pause: Callable[[], object], resume: Callable[[], object], limit: int = MAX_BUFFERED
    ) -> None:
        self._pause = pause
        self._resume = resume
        self._limit = limit
        self._buffered = 0
        self._paused = False

    def take(self, size: int) -> None:
        """Count ``size`` more bytes."""
        self._buffered += size
        if self._buffered > self._limit and not self._paused:
            self._paused = True
            self._pause()

    def release(self, size: int) -> None:
        """Count ``size`` bytes less."""
        self._buffered -= size
        if self._paused and self._buffered <= self._limit // 2:
            self._paused = False
            self._resume()


def ignore(*_: object) -> None:
    """Discard input that has no receiver."""


class InputGate:
    """The input of one stream: delivered while the gate is open, else buffered within the budget.

    It is also buffered until :meth:`begin`. Nothing is delivered after :meth:`shut`, not even from
    the same read.
    """

    def __init__(self, budget: InputBudget) -> None:
        self._budget = budget
        self._deliver: Callable[[bytes], object] = ignore
        self._on_end: Callable[[], object] = ignore
        self._buffered: deque[bytes] = deque()
        self._begun = False
        self._is_open = True
        self._flushing = False
        self._discarding = False
        self.complete = False

    def begin(self, deliver: Callable[[bytes], object], ended: Callable[[], object]) -> None:
        """Deliver the data to ``deliver``, and call ``ended`` once the input is complete."""
        self._deliver, self._on_end = deliver, ended
        self._begun = True
        self._flush()

    def receive(self, data: bytes) -> None:
        """Receive the next piece of the input."""
        if self._discarding or not data:
            return
        if self._begun and self._is_open and not self._buffered and not self._flushing:
            self._deliver(data)
        else:
            self._buffered.append(data)
            self._budget.take(len(data))

    def finish(self) -> None:
        """Mark the input as complete."""
        self.complete = True
        self._flush()

    def open(self) -> None:
        """Deliver what was buffered, and later input directly."""
        self._is_open = True
        self._flush()

    def shut(self) -> None:
        """Pause the delivery."""
        self._is_open = False

    def discard(self) -> None:
        """Discard buffered and later input."""
        self._discarding = True
        kept, self._buffered = self._buffered, deque()
        self._budget.release(sum(map(len, kept)))

    def _flush(self) -> None:
        if self._flushing or not self._begun:
            # Called from within a delivery, whose loop goes on.
            return
        self._flushing = True
        try:
            while self._buffered and self._is_open:
                data = self._buffered.popleft()
                self._budget.release(len(data))
                self._deliver(data)
        finally:
            self._flushing = False
        if self.complete and self._is_open and not self._buffered and not self._discarding:
            self._discarding = True
            self._on_end()


class Stream:
    """A stream of a connection, like ``httpstream.Stream`` of k8s.io/apimachinery.

    ``receive(data)`` gets the input, ``ended()`` is called when the client ends its direction, and
    ``was_reset()`` when it resets both. A stream without these is only for output.
    SPDY and WebSocket each implement sending; channels of a command are never reset.
    """

    def __init__(self) -> None:
        self.receive: Callable[[bytes], object] = ignore
        self.ended: Callable[[], object] = ignore
        self.was_reset: Callable[[], object] = ignore
        self.receiving = True
        self.sending = True

    def write(self, data: bytes) -> None:
        """Send ``data``, if this direction has not ended."""
        raise NotImplementedError

    def finish(self) -> None:
        """End this direction."""
        raise NotImplementedError

    def reset(self) -> None:
        """Reset both directions, so that the stream does not look complete."""
        raise NotImplementedError


CREATION_TIMEOUT: Final = 30.0
"""The timeout in seconds for a client to open the streams that belong together; kubelet's
DefaultStreamCreationTimeout."""

LINGER: Final = 30.0
"""The seconds without input after which a client that was sent everything is aborted. The client
must close first: kubectl loses unread data when a SPDY connection is closed by the server. While it
reads slowly it still sends pings, every 5 seconds."""

CLOSE_TIMEOUT: Final = 5.0
"""The timeout in seconds of closing."""

MAX_UNREAD_ANSWERS: Final = 64 * 1024
"""The limit in bytes of buffered pongs and resets for a client that does not read."""


@implementer(IHalfCloseableProtocol)
class StreamingConnection(Protocol):
    """A connection with a deadline for its end, one producer, and input that can be paused.

    Subclasses implement ``dataReceived``, beginning with :meth:`client_active`, and :meth:`lost`.
    """

    log = Logger()

    transport: IHalfCloseableTransport

    def __init__(self, clock: IReactorTime) -> None:
        self.clock = clock
        self.sources = ProducerGroup()
        self.budget = InputBudget(self.pause_input, self.resume_input)
        self.is_lost = False
        self.closing = False
        self._lingering = False
        self._input_ended = False
        self._deadline: IDelayedCall | None = None
        self._unread_answers = 0

    # -- IProtocol -----------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Register the producers, which are paused while the transport is full."""
        self.transport.registerProducer(self.sources, True)

    def readConnectionLost(self) -> None:
        """Close as well: clients end their directions by frames, so this one is gone."""
        self._input_ended = True
        self.close()

    def writeConnectionLost(self) -> None:
        """Do nothing: only this direction of the connection is never closed here."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Stop the timers, and notify the session."""
        self.end(reason)

    # -- for subclasses and their users --------------------------------------------------------

    def lost(self, reason: Failure) -> None:
        """Handle that the connection is gone; called once. For subclasses."""
        raise NotImplementedError

    def end(self, reason: Failure) -> None:
        """Call ``lost``, also if there was no connection: its request had ended before."""
        if self.is_lost:
            return
        self.is_lost = True
        self.closing = True
        cancel(self._deadline)
        self.sources.clear()
        self.lost(reason)

    def pause_input(self) -> None:
        """Pause reading."""
        if not self.closing:
            self.transport.pauseProducing()

    def resume_input(self) -> None:
        """Resume reading."""
        if not self.closing:
            self.transport.resumeProducing()

    def answer(self, data: bytes) -> None:
        """Write a reply that the client has caused; abort if it reads none of these."""
        if self.sources.paused:
            self._unread_answers += len(data)
            if self._unread_answers > MAX_UNREAD_ANSWERS:
                self.log.warn("a client sends requests and does not read the answers")
                self.transport.abortConnection()
                return
        else:
            self._unread_answers = 0
        self.transport.write(data)

    def client_active(self) -> None:
        """Record that the client is alive."""
        if self._lingering and self._deadline is not None and self._deadline.active():
            self._deadline.reset(LINGER)

    def linger(self) -> None:
        """Wait for the client to close, as everything has been written."""
        if self.closing or self._lingering:
            return
        self._lingering = True
        self.transport.resumeProducing()
        self._deadline = self.clock.callLater(LINGER, self.transport.abortConnection)

    def close(self) -> None:
        """Close after what has been written."""
        if self.closing:
            return
        self.closing = True
        self._lingering = False
        cancel(self._deadline)
        self._deadline = self.clock.callLater(CLOSE_TIMEOUT, self.transport.abortConnection)
        # Closing waits for producers, and with TLS, which ends both directions, for the peer.
        self.transport.unregisterProducer()
        if not self._input_ended:
            # A socket that is read again after its end reports its end again.
            self.transport.resumeProducing()
        self.transport.loseConnection()
