"""What the hub itself asks of the API servers: short requests, as the node or with a token."""

from __future__ import annotations

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

_AGENT = b"yurthub/" + __version__.encode("ascii")


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
        server = self._balancer.pick()
        if server is None:
            return None
        path, content_type = quote(event.path).encode("ascii"), event.content_type.encode("latin-1")
        for fresh in (False, True):
            try:
                answer = await self.ask(
                    server, b"POST", path, event.body, content_type, token=event.token, fresh=fresh
                )
            except UNANSWERED:
                continue
            return answer.status
        return None
