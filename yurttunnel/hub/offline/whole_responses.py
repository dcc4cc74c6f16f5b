"""Responses that are in memory as a whole: objects and documents, which may be large."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.offline.backpressure import Backpressure
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.request.requests import HubCall

PIECE = 64 * 1024
"""The number of bytes that are written at once; shorter bodies are sent with their head."""

MAX_BEING_SENT = 32 * 1024 * 1024
"""Maximum size in bytes of all longer bodies being sent; pods in networks of their own have as much
again, of which each may use as much as it leaves free."""


class WholeResponses:
    """Sends responses no faster than their clients read them.

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
