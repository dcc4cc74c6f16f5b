"""Which bearer tokens the API accepts, as its answers tell, for the time when nobody can ask it."""

from __future__ import annotations

from collections import OrderedDict

from twisted.internet.interfaces import IReactorTime

from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.request.callers import read_token

_TOLD_EVERY = 3600.0
"""Seconds before the cache is told again of a token that goes on being accepted."""

_MOST = 4096
"""Tokens that are remembered to have been told of."""


class SeenTokens:
    """Notifies ``cache`` of tokens that were accepted, or no longer are."""

    def __init__(self, clock: IReactorTime, cache: ICache) -> None:
        self._clock = clock
        self._cache = cache
        # When the cache was told, the oldest first.
        self._told: OrderedDict[str, float] = OrderedDict()

    def answered(self, token: str, status: int) -> None:
        """Take note of an answer: any but 401 says that the API knows whose a token is."""
        if status == 401:
            self._told.pop(token, None)
            self._cache.refuse_token(read_token(token).digest)
            return
        now = self._clock.seconds()
        told = self._told.get(token)
        if status >= 500 or (told is not None and now < told + _TOLD_EVERY):
            return
        self._told[token] = now
        self._told.move_to_end(token)
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
        self._cache.accept_token(*read_token(token))
