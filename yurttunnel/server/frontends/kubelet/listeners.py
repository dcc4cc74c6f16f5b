"""The servers behind the two ports for requests to kubelets."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import IRequestHandler
from yurttunnel.http.pool import ConnectionPool
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.http.server_connection import ServerConnection
from yurttunnel.ops.failures import Failures
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.kubelets import KubeletContexts
from yurttunnel.server.audit import Audit
from yurttunnel.server.audit_requests import RequestAudit
from yurttunnel.server.frontends.calls import caller_key
from yurttunnel.server.frontends.kubelet.kubelets import KubeletConnector
from yurttunnel.server.frontends.kubelet.metrics import (
    InterceptionCounters,
    InterceptionStats,
    RequestMetrics,
)
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware, chain
from yurttunnel.server.frontends.kubelet.proxy import Interceptor, KubeletProxy
from yurttunnel.server.frontends.kubelet.trace import Trace
from yurttunnel.server.handshake_failures import HandshakeFailureLog
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.stream import TunnelStream

SETTINGS = ServerSettings(limits=HeadLimits(max_bytes=512 * 1024, max_fields=200))
"""The words of a command to execute are in the query, and one word can have 128 KiB
(``MAX_ARG_STRLEN`` of execve(2)), which percent-encoding triples."""


class Interception:
    """The factories of the two ports, and what they share.

    ``secure`` is for the port with TLS, which verifies callers, ``insecure`` for the other one.
    Kubelets are connected with TLS if the caller is. ``middlewares`` run after the server's own,
    ``trace`` and ``metrics``. Requests are recorded in ``audit`` and counted in ``counters``;
    failed ones are kept in ``failures``. ``response_timeout`` is in seconds, ``None`` for no
    timeout; ``use_response_timeout`` changes it.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        registry: SessionRegistry,
        kubelets: KubeletContexts,
        middlewares: Sequence[IMiddleware],
        response_timeout: float | None,
        settings: ServerSettings = SETTINGS,
        audit: Audit | None = None,
        counters: InterceptionCounters | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._counters = counters or InterceptionCounters()
        connector = KubeletConnector(reactor, kubelets, self._counters)
        self._pool = ConnectionPool(
            reactor,
            connector.connect,
            may_keep=lambda key: not key.session.draining,
            group_of=lambda key: key.session,
        )
        self._proxy = KubeletProxy(
            reactor, registry, kubelets, self._pool, response_timeout, settings.max_connections
        )
        self.use_response_timeout = self._proxy.use_response_timeout
        own: list[IMiddleware] = [Trace(reactor), RequestMetrics(reactor, self._counters, failures)]
        if audit is not None:
            own.insert(0, RequestAudit(audit))
        handler = Interceptor(chain([*own, *middlewares], self._proxy.handle))
        self.secure = SecureFactory(reactor, handler, settings)
        self.insecure = HTTPFactory(reactor, handler, settings)
        for flag, factory in (("--secure-port", self.secure), ("--insecure-port", self.insecure)):
            # One per port, so that warnings about one port do not suppress those about the other.
            warnings = RateLimitedLog(reactor, self._log)
            factory.on_full = partial(_warn_when_full, warnings, flag, factory)
            factory.caller_of = caller_key

    def stats(self) -> InterceptionStats:
        """Return the values of the metrics."""
        return InterceptionStats(
            counters=self._counters,
            pool=self._pool.statistics,
            refusals=self.secure.refusals + self.insecure.refusals,
        )

    def pooled_streams(self) -> Iterator[tuple[TunnelStream, str]]:
        """Iterate over the streams to kubelets, each with its caller, empty if it is idle."""
        idle: list[tuple[ClientConnection, Hashable]]
        idle = [(each, "") for each in self._pool.idle_connections()]
        for connection, caller in itertools.chain(idle, self._pool.in_use_connections()):
            stream = _stream_below(connection)
            if stream is not None:
                yield stream, str(caller)

    def sessions_draining(self, sessions: frozenset[INodeSession]) -> None:
        """Close idle connections of draining sessions, which would wait for them."""
        self._pool.close_idle(lambda key: key.session in sessions)

    def drain(self) -> Deferred[Any]:
        """Let current requests complete, and close idle connections on both sides.

        Returns a ``Deferred`` that fires when the last caller has its response.
        """
        self._pool.drain()
        return DeferredList([self.secure.drain(), self.insecure.drain()])

    def close(self) -> None:
        """Abort all connections and stop the timers."""
        self.secure.close()
        self.insecure.close()
        self._pool.close()
        self._proxy.close()


def _stream_below(connection: ClientConnection) -> TunnelStream | None:
    """Return the stream that carries a connection, below TLS if present."""
    transport: Any = connection.transport
    while transport is not None and not isinstance(transport, TunnelStream):
        transport = getattr(transport, "transport", None)
    return transport


def _warn_when_full(warnings: RateLimitedLog, flag: str, factory: HTTPFactory) -> None:
    """Warn the operator that callers of one port are rejected."""
    settings = factory.settings
    warnings.warn(
        "{flag} rejects callers: it has {connections} connections ({max_connections} at most)"
        " and {handshakes} unfinished TLS handshakes ({max_handshakes} at most); see who holds"
        " them (ss -tn), and filter addresses in front of it",
        flag=flag,
        connections=len(factory.connections),
        max_connections=settings.max_connections,
        handshakes=len(factory.handshakes),
        max_handshakes=settings.max_handshakes,
    )


class SecureFactory(HTTPFactory):
    """Serves callers over TLS, and reports those whose handshake fails."""

    log = Logger()

    def __init__(
        self, clock: IReactorTime, handler: IRequestHandler, settings: ServerSettings
    ) -> None:
        super().__init__(clock, handler, settings)
        self.handshake_failures = HandshakeFailureLog(clock, self.log)

    def handshake_failed(self, connection: ServerConnection, reason: Failure) -> None:
        """Report a caller whose handshake failed.

        A TLS error after the handshake concerns an accepted caller and is not reported.
        """
        if reason.check(SSL.Error):
            self.handshake_failures.warn_of_caller(connection.transport, reason)
