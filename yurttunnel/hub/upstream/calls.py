"""What the hub itself asks of the API servers: short requests, as the node or with a token."""

from __future__ import annotations

import json
from urllib.parse import quote

from twisted.internet.defer import Deferred

from yurttunnel import __version__
from yurttunnel.http.asking import Answer, ask
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import PoolBusy
from yurttunnel.hub.cache.interfaces import KeptEvent
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.servers import Balancer, Server

MAX_ANSWER = 1 << 20
"""Bytes of an answer that are looked at."""

UNANSWERED = (RequestFailed, ExchangeFailed, PoolBusy)
"""What a call fails with; the text says why there is no answer."""

_SELF_REVIEWS = b"/apis/authentication.k8s.io/v1/selfsubjectreviews"
_SELF_REVIEW = b'{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}'
_NOBODY = "system:anonymous"
"""Whose requests are that prove nothing (``Anonymous`` of k8s.io/apiserver
pkg/authentication/user)."""

_AGENT = b"yurthub/" + __version__.encode("ascii")


class TokenRefused(Exception):
    """The API does not accept a token."""


class ApiCalls:
    """Asks over ``connections``; whoever asks bounds the time, and may cancel."""

    def __init__(self, connections: Connections, balancer: Balancer) -> None:
        self._connections = connections
        self._balancer = balancer

    async def ask(
        self,
        server: Server,
        method: bytes,
        path: bytes,
        body: bytes = b"",
        content_type: bytes = b"application/json",
        *,
        token: str = "",
        fresh: bool = False,
    ) -> Answer:
        """Return the answer of ``server``; without a ``token`` it is the node that asks.

        With ``fresh`` on a new connection, since one that was kept may have been closed there.
        Fails with one of :data:`UNANSWERED`.
        """
        # What lasts does not wait for its turn.
        connection = await self._connections.acquire(server, not token, fresh=fresh, lasting=True)
        fields = [
            (b"Host", server.authority),
            (b"User-Agent", _AGENT),
            (b"Accept", b"application/json"),
        ]
        if token:
            fields.append((b"Authorization", b"Bearer " + token.encode("ascii")))
        if body:
            fields.append((b"Content-Type", content_type))
        return await ask(connection, method, path, fields, body, MAX_ANSWER)

    def send_event(self, event: KeptEvent) -> Deferred[int | None]:
        """Send an Event that was kept; return the answer's status, ``None`` if nobody answered."""
        return Deferred.fromCoroutine(self._send_event(event))

    async def _send_event(self, event: KeptEvent) -> int | None:
        path, content_type = quote(event.path).encode("ascii"), event.content_type.encode("latin-1")
        answer = await self._post(path, event.body, content_type, event.token)
        return None if answer is None else answer.status

    def user_of(self, token: str) -> Deferred[str]:
        """Return by which name the API knows whoever has ``token``, empty if it does not say.

        It is asked by a SelfSubjectReview (KEP-3325), which everybody may create who is known.
        Fails with :class:`TokenRefused` when nobody is.
        """
        return Deferred.fromCoroutine(self._user_of(token))

    async def _user_of(self, token: str) -> str:
        answer = await self._post(_SELF_REVIEWS, _SELF_REVIEW, b"application/json", token)
        if answer is None:
            return ""
        if answer.status == 401:
            raise TokenRefused
        return _username(answer.body) if answer.status == 201 else ""

    async def _post(
        self, path: bytes, body: bytes, content_type: bytes, token: str
    ) -> Answer | None:
        """Ask a server that is healthy; return ``None`` if it does not answer."""
        server = self._balancer.pick()
        if server is None:
            return None
        for fresh in (False, True):
            try:
                return await self.ask(
                    server, b"POST", path, body, content_type, token=token, fresh=fresh
                )
            except UNANSWERED:
                continue
        return None


def _username(body: bytes) -> str:
    """Return whom a SelfSubjectReview names, nobody if it cannot be read."""
    try:
        name = json.loads(body)["status"]["userInfo"]["username"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    named = isinstance(name, str) and name.isprintable() and name != _NOBODY
    return name if named else ""
