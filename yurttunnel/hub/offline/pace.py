"""How fast a client takes what is sent to it."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer, IReactorTime
from zope.interface import implementer

from yurttunnel.http.interfaces import ExchangeFailed, IExchange

TAKE_SECONDS = 120.0
"""Seconds in which a client has to take more, as long as a list may be read. Until then it holds
what others could have, and nothing else ends a connection from which nothing is taken."""


@implementer(IPushProducer)
class Pace:
    """Lets a coroutine that writes a response keep step with its client.

    ``ended`` says that nobody waits for the rest.
    """

    def __init__(self, clock: IReactorTime, exchange: IExchange) -> None:
        self.ended = False
        self._clock = clock
        self._exchange = exchange
        self._paused = False
        self._waiting: Deferred[None] | None = None
        exchange.on_end(self._end)

    def begin(self) -> None:
        """Keep step from now on: the head is sent, so no other answer has a producer of its own."""
        self._exchange.registerProducer(self, True)

    def ready(self) -> Deferred[None]:
        """Return when the client takes more, or has gone.

        Fails with ``TimeoutError`` after :data:`TAKE_SECONDS`.
        """
        if self._paused and not self.ended:
            self._waiting = Deferred()
            return self._waiting.addTimeout(TAKE_SECONDS, self._clock)
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
