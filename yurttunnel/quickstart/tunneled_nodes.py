"""The embedded API's connections to its node, which only use the tunnel's HTTPS interception.

kube-apiserver does the same where yurttunnel steers by DNS: the node's name resolves to the server,
which determines the node and the port from the ``Host`` of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

from yurttunnel.http.authority import join_authority
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.client_connect import open_connection
from yurttunnel.http.pool import ConnectionPool, PoolSettings
from yurttunnel.http.relay import Acquire
from yurttunnel.http.simple_client import fetch
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.sockets import TunedEndpoint, tune_api_socket

CONNECT_TIMEOUT = 10.0
"""The timeout of a connection to the server, including its TLS handshake."""

MAX_CONNECTIONS = 512
"""The maximum number of connections to one node: each user who follows a log that has no line yet
holds one."""

PROBE_TIMEOUT = 5.0
"""The timeout of a check of the node."""


class Contexts(Protocol):
    """A source of TLS contexts for connections to servers, as ``ClientContexts`` is one."""

    def creator(self, server_name: str) -> IOpenSSLClientConnectionCreator:
        """Return the creator of TLS connections to a server of that name."""


class TunneledNodes:
    """Connections to nodes through the HTTPS interception of a server.

    ``servers()`` returns the host and port of each; the first one that accepts a connection is
    used, like one of a name's several addresses. ``contexts`` present a client certificate that
    servers accept, and send the node's name in the ClientHello. Connections are pooled.
    """

    def __init__(
        self,
        reactor: IReactor,
        contexts: Contexts,
        servers: Callable[[], Sequence[tuple[str, int]]],
    ) -> None:
        self._reactor = reactor
        self._contexts = contexts
        self._servers = servers
        self._pool: ConnectionPool[str] = ConnectionPool(
            reactor, self._connect, PoolSettings(max_per_key=MAX_CONNECTIONS)
        )

    def connections(self, node: str, port: int) -> Acquire:
        """Return the function that acquires connections to ``node``.

        All its ports share them: the ``Host`` of each request names the port.
        """
        return partial(self._pool.acquire, node)

    def close(self) -> None:
        """Abort all connections."""
        self._pool.close()

    async def problem(self, node: str, port: int) -> str | None:
        """Check the health of the node; return the problem, or ``None``."""
        host = join_authority(node, port).encode("ascii")
        try:
            connection = self._pool.acquire(node)
            if isinstance(connection, Deferred):
                connection = await connection
            request = fetch(connection, b"GET", b"/healthz", [(b"Host", host)], max_body=200)
            response = await request.addTimeout(PROBE_TIMEOUT, self._reactor)
        except Exception as error:
            # Whatever the error, it is a problem to report, and the check is repeated.
            return f"{type(error).__name__}: {error}"
        if response.status == 200:
            return None
        return f"the answer is {response.status} {response.body.decode('utf-8', 'replace')}"

    def _connect(self, node: str, caller: Hashable) -> Deferred[ClientConnection]:
        return Deferred.fromCoroutine(self._make_connection(node)).addTimeout(
            CONNECT_TIMEOUT, self._reactor
        )

    async def _make_connection(self, node: str) -> ClientConnection:
        *others, last = self._servers()
        for host, port in others:
            with suppress(ConnectError):
                return await self._connect_to(host, port, node)
        return await self._connect_to(*last, node)

    async def _connect_to(self, host: str, port: int, node: str) -> ClientConnection:
        tcp = TCP4ClientEndpoint(self._reactor, host, port, timeout=CONNECT_TIMEOUT)
        tuned = TunedEndpoint(tcp, tune_api_socket)
        endpoint = tls.TLSEndpoint(self._reactor, self._contexts.creator(node), tuned)
        return await open_connection(endpoint, lambda: ClientConnection(self._reactor))
