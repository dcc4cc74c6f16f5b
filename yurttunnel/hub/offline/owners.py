"""Whose requests are, as long as the API cannot be asked.

A request without a token is the node's on the loopback listeners, and nobody's on the others. A
token counts when the API has accepted it while it could be reached, and it has not expired; or when
it is a placeholder of the hub's own. A token that is nobody's gets nothing, also on loopback: who
sends one does not ask as the node.
"""

from __future__ import annotations

from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.offline.placeholder import PlaceholderTokens
from yurttunnel.hub.offline.refusals import Refusals
from yurttunnel.hub.request.callers import read_token
from yurttunnel.hub.request.requests import Caller

NODE = ""
"""The owner that is the node itself, for ``Policy.client``."""


class Owners:
    """Finds them; ``placeholders`` are ``None`` when none are issued."""

    def __init__(
        self, cache: ICache, refusals: Refusals, placeholders: PlaceholderTokens | None
    ) -> None:
        self._cache = cache
        self._refusals = refusals
        self._placeholders = placeholders

    async def owner(self, caller: Caller) -> str:
        """Return whose a request is; raises ``RequestFailed`` (401) for nobody's."""
        if not caller.token:
            if caller.local:
                return NODE
            raise self._refusals.unauthorized("a bearer token is needed on this address")
        if self._placeholders is not None:
            owner = self._placeholders.owner(caller.token)
            if owner is not None:
                return owner
        accepted = await self.accepted(caller.token)
        if accepted is None:
            raise self._refusals.unauthorized("the token was not accepted by it before, or expired")
        return accepted

    async def accepted(self, token: str) -> str | None:
        """Return who owns a token that the API has accepted, ``None`` if it has not."""
        return await self._cache.token_owner(read_token(token).digest)
