"""The owners of requests while the API cannot be asked.

A request without a token is the node's on the loopback listeners, and is rejected on the others. A
token is valid if the API accepted it while online and it has not expired, or if it is a placeholder
of this hub. A request with any other token is rejected, also on loopback: a request with a token is
never served as the node's.
"""

from __future__ import annotations

from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.placeholder import PlaceholderTokens
from yurttunnel.hub.request.callers import read_token
from yurttunnel.hub.request.requests import Caller

NODE = ""
"""The owner that stands for the node, in ``Policy.client``."""


class Owners:
    """Finds the owners of requests; ``placeholders`` are ``None`` if none are issued."""

    def __init__(
        self, cache: ICache, failures: OfflineFailures, placeholders: PlaceholderTokens | None
    ) -> None:
        self._cache = cache
        self._failures = failures
        self._placeholders = placeholders

    async def owner(self, caller: Caller) -> str:
        """Return the owner of a request; raise ``RequestFailed`` (401) if there is none."""
        if not caller.token:
            if caller.local:
                return NODE
            raise self._failures.unauthorized("a bearer token is needed on this address")
        if self._placeholders is not None:
            owner = self._placeholders.owner(caller.token)
            if owner is not None:
                return owner
        accepted = await self.accepted(caller.token)
        if accepted is None:
            raise self._failures.unauthorized(
                "the token was not accepted by it before, or has expired"
            )
        return accepted

    async def accepted(self, token: str) -> str | None:
        """Return the owner of a token that the API has accepted, ``None`` for any other token."""
        return await self._cache.token_owner(read_token(token).digest)
