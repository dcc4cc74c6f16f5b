"""The middleware ``metrics``: counts requests while they are served, and when they have ended."""

from __future__ import annotations

from http import HTTPStatus

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.http.fields import requested_upgrade
from yurttunnel.ops.interception import InterceptionCounters
from yurttunnel.server.interception.middleware import IMiddleware
from yurttunnel.server.interception.request import (
    Handler,
    InterceptedRequest,
)

_KNOWN = frozenset(status.value for status in HTTPStatus)


@implementer(IMiddleware)
class RequestMetrics:
    """Counts into ``counters``, under labels that have few values whatever callers send."""

    def __init__(self, clock: IReactorTime, counters: InterceptionCounters) -> None:
        self._clock = clock
        self._counters = counters

    def wrap(self, handler: Handler) -> Handler:
        """See :class:`IMiddleware`."""

        def counted(request: InterceptedRequest) -> None:
            labels = request.verb, request.path_class
            began = self._clock.seconds()
            self._counters.in_hand[labels] += 1
            request.exchange.on_end(lambda _: self._ended(request, labels, began))
            handler(request)

        return counted

    def _ended(self, request: InterceptedRequest, labels: tuple[str, str], began: float) -> None:
        counters = self._counters
        status = request.exchange.status
        counters.in_hand[labels] -= 1
        counters.answered[(*labels, _code(status))] += 1
        head = request.exchange.head
        upgraded = b"upgrade" in head.by_name and requested_upgrade(head) is not None
        if not (upgraded or request.follows):
            counters.durations.observe(self._clock.seconds() - began)


def _code(status: int) -> str:
    """Return the status as a label; of those that nobody has heard of, only the class."""
    if not status:
        return "none"
    return str(status) if status in _KNOWN else f"{status // 100}xx"
