"""Back-pressure from clients that read slowly, and responses that are in memory as a whole."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer, IReactorTime
from zope.interface import implementer

from yurttunnel.http.interfaces import ExchangeFailed, IExchange
from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.request.requests import HubCall

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
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        self._go_on()

    def stopProducing(self) -> None:
        self.ended = True
        self._go_on()

    def _end(self, error: ExchangeFailed | None) -> None:
        self.stopProducing()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)


PIECE = 64 * 1024
"""The number of bytes that are written at once; shorter bodies are sent with their head."""

MAX_BEING_SENT = 32 * 1024 * 1024
"""Maximum size in bytes of all longer bodies being sent; pods in networks of their own have as much
again, of which each may use as much as it leaves free."""


class WholeResponses:
    """Sends objects and documents, which may be large, no faster than their clients read them.

    Meanwhile they are in memory, which many slow clients would fill.
    """

    def __init__(self, clock: IReactorTime, failures: OfflineFailures) -> None:
        self._clock = clock
        self._failures = failures
        # Keys: whether they are for pods.
        self._places = {pods: SharedLimit(MAX_BEING_SENT) for pods in (False, True)}

    async def send(self, call: HubCall, content_type: bytes, body: bytes) -> None:
        """Respond with ``body``; raise ``RequestFailed`` before the response has begun."""
        exchange, size = call.exchange, len(body)
        fields = [(b"Content-Type", content_type)]
        if size <= PIECE:
            exchange.respond(200, fields, body)
            return
        self._charge(call, size)
        exchange.send_head(200, [*fields, (b"Content-Length", b"%d" % size)])
        backpressure = Backpressure(self._clock, exchange)
        backpressure.begin()
        for begin in range(0, size, PIECE):
            if backpressure.ended:
                return
            exchange.write(body[begin : begin + PIECE])
            await backpressure.ready()
        exchange.finish()

    def _charge(self, call: HubCall, size: int) -> None:
        share_holder = call.share_holder
        places = self._places[share_holder is not None]
        if not places.has_room_for(share_holder):
            raise self._failures.unavailable("too much cached data is being sent to clients")
        places.add(share_holder, size)
        call.exchange.on_end(lambda _: places.add(share_holder, -size))
