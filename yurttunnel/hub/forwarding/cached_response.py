"""A response from the cache that races with the response of an API server; the first one wins."""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.http.exchange_wrapper import ExchangeWrapper
from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import ExchangeFailed, IExchange


class CachedResponse(ExchangeWrapper):
    """The exchange for the cache; ``begin()`` returns whether it may respond, and is called once.

    If it may not, the response fails with :class:`ExchangeFailed`, and nothing is sent.
    """

    def __init__(self, exchange: IExchange, begin: Callable[[], bool]) -> None:
        super().__init__(exchange)
        self._begin = begin
        self._begun = False

    @property
    def head_sent(self) -> bool:
        """See ``IExchange``; the response of an API server does not count."""
        return self._begun and self.exchange.head_sent

    def send_head(self, status: int, fields: Fields = (), reason: bytes = b"") -> None:
        self._check()
        self.exchange.send_head(status, fields, reason)

    def respond(self, status: int, fields: Fields = (), body: bytes = b"") -> None:
        self._check()
        self.exchange.respond(status, fields, body)

    def _check(self) -> None:
        if not self._begin():
            raise ExchangeFailed("another response has begun meanwhile")
        self._begun = True
