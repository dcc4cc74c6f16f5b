"""Pooled TLS connections to the API servers, with or without the node's certificate.

A request with a token of its own uses a connection without the node's certificate; with it, the API
would see two users. Host names are resolved for each connection, so servers may move. After a
renewal of the certificate, older connections are closed when their current requests have ended.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.client_connect import HTTPSConnection, open_connection
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.pool import ConnectionPool, PoolSettings, PoolStatistics
from yurttunnel.hub.interfaces import IIdentity
from yurttunnel.hub.upstream.servers import Server
from yurttunnel.kube.client import HEAD_LIMITS
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.tls_errors import problem_with_api
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.named_endpoint import named_endpoint
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.sockets import TunedEndpoint, tune_api_socket

CONNECT_SECONDS = 10.0
"""The timeout of a connection, including name resolution and the TLS handshake (in upstream,
``net.Dialer`` and ``TLSHandshakeTimeout`` have the same timeout each)."""

POOL = PoolSettings(
    max_per_key=64, max_upgrades_per_key=64, max_connections_per_key=4096, idle_timeout=60.0
)
"""Watches count only against the limit of all connections. Idle connections are closed before
kube-apiserver closes them after 90 s (``IdleTimeout`` of k8s.io/apiserver
pkg/server/secure_serving.go)."""


class ConnectionKey(NamedTuple):
    """The key of interchangeable connections.

    Each generation of the ``contexts`` has a new key, so connections from before a renewal are not
    reused.
    """

    server: Server
    as_node: bool
    contexts: ClientContexts
    generation: object


class Connections:
    """The connections to all servers; its creator must close it."""

    def __init__(self, reactor: IReactor, identity: IIdentity) -> None:
        self._reactor = reactor
        self._identity = identity
        # The contexts whose renewals are followed.
        self._followed: set[ClientContexts] = set()
        self._keys: dict[tuple[Server, bool], ConnectionKey] = {}
        self._pool: ConnectionPool[ConnectionKey] = ConnectionPool(
            reactor, self._connect, POOL, may_keep=self._is_current, group_of=lambda key: key.server
        )

    def acquire(
        self,
        server: Server,
        as_node: bool,
        *,
        fresh: bool = False,
        long_running: bool = False,
        upload: bool = False,
        upgrade: bool = False,
        caller: Hashable = None,
    ) -> Deferred[ClientConnection] | ClientConnection:
        """Return a connection for one request, as ``ConnectionPool.acquire`` does.

        Fails with ``RequestFailed`` (502 to 504) and the reason, or with the errors of the pool.
        """
        key = self._keys.get((server, as_node))
        if key is None:
            contexts = self._contexts(as_node)
            if contexts is None:
                problem = self._identity.problem() or "it is being requested"
                return fail(RequestFailed(503, f"this node has no certificate yet: {problem}"))
            key = ConnectionKey(server, as_node, contexts, contexts.generation)
            self._keys[server, as_node] = key
        return self._pool.acquire(
            key,
            fresh=fresh,
            long_running=long_running,
            upload=upload,
            upgrade=upgrade,
            caller=caller,
        )

    def close_server(self, server: Server, why: str) -> None:
        """Close all connections to a server, long-running ones included; requests on them fail."""
        self._pool.close_all(lambda key: key.server is server, why)

    def close(self) -> None:
        """Close everything."""
        self._pool.close()

    @property
    def statistics(self) -> PoolStatistics:
        """The current state and the counters."""
        return self._pool.statistics

    def _contexts(self, as_node: bool) -> ClientContexts | None:
        contexts = self._identity.node if as_node else self._identity.anonymous
        if contexts is not None and contexts not in self._followed:
            self._followed.add(contexts)
            contexts.on_rotated.append(self._rotated)
        return contexts

    def _is_current(self, key: ConnectionKey) -> bool:
        return self._keys.get((key.server, key.as_node)) is key

    def _rotated(self) -> None:
        """Use the current certificate for new connections."""
        self._keys.clear()
        self._pool.close_idle()

    def _connect(self, key: ConnectionKey, caller: Hashable) -> Deferred[ClientConnection]:
        connecting = Deferred.fromCoroutine(self._make(key))
        return connecting.addTimeout(CONNECT_SECONDS, self._reactor).addErrback(_failed, key.server)

    async def _make(self, key: ConnectionKey) -> ClientConnection:
        server = key.server
        tcp = named_endpoint(
            self._reactor, server.host, server.port, CONNECT_SECONDS, lambda: server.skip
        )
        tuned = TunedEndpoint(tcp, tune_api_socket)
        endpoint = tls.TLSEndpoint(self._reactor, key.contexts.creator(server.host), tuned)
        return await open_connection(
            endpoint, lambda: HTTPSConnection(self._reactor, problem_with_api, HEAD_LIMITS)
        )


def _failed(failure: Failure, server: Server) -> Failure:
    """Convert the failure of a connection; a cancellation stays as it is."""
    if failure.check(CancelledError):
        return failure
    if failure.check(DeferredTimeout):
        text = f"{server}: no connection within {CONNECT_SECONDS:g} s"
        return Failure(RequestFailed(504, text))
    error = failure.value
    problem = problem_with_api(failure) if isinstance(error, SSL.Error) else str(error)
    return Failure(RequestFailed(502, f"{server}: {problem or type(error).__name__}"))
