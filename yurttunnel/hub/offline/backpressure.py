"""Back-pressure from clients that read slowly."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer, IReactorTime
from zope.interface import implementer

from yurttunnel.http.interfaces import ExchangeFailed, IExchange

READ_TIMEOUT = 120.0
"""The timeout in seconds for a client that reads nothing, the same as the maximum age of a list's
snapshot. Such a client holds resources that others need, and has no other timeout."""


@implementer(IPushProducer)
class Backpressure:
    """Lets a coroutine that writes a response wait for its client.

    ``ended`` is set when the client no longer reads the response.
    """

    def __init__(self, clock: IReactorTime, exchange: IExchange) -> None:
        self.ended = False
        self._clock = clock
        self._exchange = exchange
        self._paused = False
        self._waiting: Deferred[None] | None = None
        exchange.on_end(self._end)

    def begin(self) -> None:
        """Register as the producer; the head was sent, so no other response can have one."""
        self._exchange.registerProducer(self, True)

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when the client reads again, or disconnects.

        Fails with ``TimeoutError`` after :data:`READ_TIMEOUT`.
        """
        if self._paused and not self.ended:
            self._waiting = Deferred()
            return self._waiting.addTimeout(READ_TIMEOUT, self._clock)
        return succeed(None)

    def pauseProducing(self) -> None:
        """See ``IPushProducer``."""
        self._paused = True

    def resumeProducing(self) -> None:
        """See ``IPushProducer``."""
        self._paused = False
        self._go_on()

    def stopProducing(self) -> None:
        """See ``IPushProducer``."""
        self.ended = True
        self._go_on()

    def _end(self, error: ExchangeFailed | None) -> None:
        self.stopProducing()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)
