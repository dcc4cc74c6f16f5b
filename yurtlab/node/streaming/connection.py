"""What the connections of SPDY and WebSocket have in common: who writes, who reads, and the end.

Neither SPDY as Kubernetes speaks it nor WebSocket lets a receiver stop one stream. What comes in
for a stream that is not wanted now is kept, up to a limit for the connection; beyond that the
connection is not read, which stops its other streams too. What goes out fills one transport: when
it is full all that write to it are paused, and when it has room they go on in turn.
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

MAX_KEPT: Final = 256 * 1024
"""Bytes of input that a connection keeps for streams which do not want them now; one more read of
its transport may come on top."""


@implementer(IPushProducer)
class Sources:
    """All that write to one transport, registered with it as a single push producer."""

    def __init__(self) -> None:
        # Each with whether it is paused; those that were resumed last come last.
        self._producers: dict[IPushProducer, bool] = {}
        self.paused = False

    def add(self, producer: IPushProducer) -> None:
        """Have ``producer`` paused while the transport is full, perhaps at once."""
        self._producers[producer] = self.paused
        if self.paused:
            producer.pauseProducing()

    def discard(self, producer: IPushProducer) -> None:
        """Forget ``producer``."""
        self._producers.pop(producer, None)

    def clear(self) -> None:
        """Forget all."""
        self._producers.clear()

    def pauseProducing(self) -> None:
        self.paused = True
        for producer, is_paused in list(self._producers.items()):
            if not is_paused and producer in self._producers:
                self._producers[producer] = True
                producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume one after the other until the transport is full again."""
        self.paused = False
        for producer, is_paused in list(self._producers.items()):
            if self.paused:
                return
            if is_paused and producer in self._producers:
                del self._producers[producer]
                self._producers[producer] = False
                producer.resumeProducing()

    def stopProducing(self) -> None:
        """Forget all: the transport is gone, which its protocol is told."""
        self.clear()


class InputBudget:
    """Counts what a connection keeps, and pauses its reading beyond ``limit`` bytes."""

    def __init__(
        self, pause: Callable[[], object], resume: Callable[[], object], limit: int = MAX_KEPT
    ) -> None:
        self._pause = pause
        self._resume = resume
        self._limit = limit
        self._kept = 0
        self._paused = False

    def take(self, size: int) -> None:
        """Count ``size`` more bytes."""
        self._kept += size
        if self._kept > self._limit and not self._paused:
            self._paused = True
            self._pause()

    def give_back(self, size: int) -> None:
        """Count ``size`` bytes less."""
        self._kept -= size
        if self._paused and self._kept <= self._limit // 2:
            self._paused = False
            self._resume()


def ignore(*_: object) -> None:
    """Drop what comes: nobody waits for it."""


class InputGate:
    """The input of one stream: passed on while the gate is open, else kept within the budget.

    It is kept, too, until :meth:`begin`. Nothing is delivered after :meth:`shut`, not even from
    the same read.
    """

    def __init__(self, budget: InputBudget) -> None:
        self._budget = budget
        self._deliver: Callable[[bytes], object] = ignore
        self._on_end: Callable[[], object] = ignore
        self._kept: deque[bytes] = deque()
        self._begun = False
        self._is_open = True
        self._flushing = False
        self._discarding = False
        self.complete = False

    def begin(self, deliver: Callable[[bytes], object], ended: Callable[[], object]) -> None:
        """Have ``deliver`` get the data, and ``ended`` called once the input is complete."""
        self._deliver, self._on_end = deliver, ended
        self._begun = True
        self._flush()

    def receive(self, data: bytes) -> None:
        """Take the next piece of the input."""
        if self._discarding or not data:
            return
        if self._begun and self._is_open and not self._kept and not self._flushing:
            self._deliver(data)
        else:
            self._kept.append(data)
            self._budget.take(len(data))

    def finish(self) -> None:
        """Take note that the input is complete."""
        self.complete = True
        self._flush()

    def open(self) -> None:
        """Deliver what was kept, and from now on what comes."""
        self._is_open = True
        self._flush()

    def shut(self) -> None:
        """Deliver no more for now."""
        self._is_open = False

    def discard(self) -> None:
        """Drop what was kept and what comes: nobody wants it any more."""
        self._discarding = True
        kept, self._kept = self._kept, deque()
        self._budget.give_back(sum(map(len, kept)))

    def _flush(self) -> None:
        if self._flushing or not self._begun:
            # Called by who is being given data: the loop that does so goes on.
            return
        self._flushing = True
        try:
            while self._kept and self._is_open:
                data = self._kept.popleft()
                self._budget.give_back(len(data))
                self._deliver(data)
        finally:
            self._flushing = False
        if self.complete and self._is_open and not self._kept and not self._discarding:
            self._discarding = True
            self._on_end()


class Stream:
    """One stream of a connection, as ``httpstream.Stream`` of k8s.io/apimachinery.

    ``receive(data)`` gets what comes, ``ended()`` is called when the client sends no more, and
    ``was_reset()`` when it has ended both directions. On one without these clients only listen.
    SPDY and WebSocket each implement what is sent; channels of a command are never reset.
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
        """End both directions, so that it does not look complete."""
        raise NotImplementedError


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
        cancel(self._deadline)
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
        # Closing waits for producers; and TLS, which ends both directions, for the client's end.
        self.transport.unregisterProducer()
        if not self._input_ended:
            # A socket that is read again after its end says again that it has ended.
            self.transport.resumeProducing()
        self.transport.loseConnection()
