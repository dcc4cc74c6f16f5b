"""An exchange that wraps another, the base class for middlewares."""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from yurttunnel.http.interfaces import IExchange


@implementer(IExchange)
class ExchangeWrapper:
    """Delegates everything to ``exchange``; subclasses override what they change."""

    def __init__(self, exchange: IExchange) -> None:
        self.exchange = exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exchange, name)
