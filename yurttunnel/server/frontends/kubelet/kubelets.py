"""Connections to kubelets: a stream of the node's session, optionally TLS, then HTTP."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from yurttunnel.http.authority import join_authority
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.client_connect import HTTPSConnection
from yurttunnel.http.errors import RequestFailed, status_of
from yurttunnel.pki.kubelets import KubeletContexts, KubeletNotTrusted
from yurttunnel.pki.tls_errors import problem_with_kubelet
from yurttunnel.server.frontends.calls import DIAL_TIMEOUT
from yurttunnel.server.frontends.kubelet.metrics import InterceptionCounters
from yurttunnel.server.registry import INodeSession
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.shares import Holder, for_kubelets

log = Logger()

HANDSHAKE_TIMEOUT = 15.0
"""Seconds for a TLS handshake with a kubelet, after the agent has connected to it."""


class KubeletKey(NamedTuple):
    """The pool key: connections with equal keys are interchangeable.

    A connection belongs to the session that carries it and ends with it, so connections of a
    replaced session are never found. ``trust`` is the generation of the contexts that verified the
    kubelet, so older connections are not reused after a change; it is ``None`` without TLS.
    """

    session: INodeSession
    host: str
    port: int
    trust: object | None

    def __str__(self) -> str:
        """Return the node and the address in readable form."""
        return f"the kubelet of {self.session.node} at {join_authority(self.host, self.port)}"


class KubeletConnector:
    """Connects to kubelets; ``counters`` count the results of handshakes."""

    def __init__(
        self, reactor: IReactor, contexts: KubeletContexts, counters: InterceptionCounters
    ) -> None:
        self._reactor = reactor
        self._contexts = contexts
        self._counters = counters
        self._request_ids = RequestIds()

    def connect(self, key: KubeletKey, caller: Hashable = None) -> Deferred[ClientConnection]:
        """Connect, within the timeouts of a dial and a handshake.

        The stream is charged to the share of ``caller``, a string, or to the common one. Fails with
        :class:`RequestFailed`; cancelling aborts the attempt.
        """
        return Deferred.fromCoroutine(self._connect(key, for_kubelets(caller)))

    async def _connect(self, key: KubeletKey, holder: Holder) -> ClientConnection:
        # The connection has its own id, since it serves many requests.
        request_id = self._request_ids.make()
        log.debug(
            "connection {request_id} to {key}",
            request_id=request_id,
            key=key,
            node=key.session.node,
        )
        try:
            stream = await key.session.open_stream(
                key.host, key.port, DIAL_TIMEOUT, request_id, holder
            )
        except StreamFailed as error:
            raise RequestFailed(status_of(error.code), f"{key}: {error.text}") from error
        if key.trust is None:
            connection = ClientConnection(self._reactor)
            stream.attach(connection)
            return connection
        return await self._handshake(key, stream)

    async def _handshake(self, key: KubeletKey, stream: IStream) -> ClientConnection:
        creator = self._contexts.creator(key.session.node, key.host)
        connection = HTTPSConnection(self._reactor, problem_with_kubelet)
        timer = self._reactor.callLater(HANDSHAKE_TIMEOUT, connection.abort)
        try:
            secured = tls.client_side(
                self._reactor, creator, Factory.forProtocol(lambda: connection)
            )
            stream.attach(cast(IProtocol, secured.buildProtocol(stream.getPeer())))
            await connection.when_ready()
        except CancelledError:
            connection.abort()
            raise
        except Exception as error:
            raise self._handshake_failed(key, error, not timer.active()) from error
        finally:
            if timer.active():
                timer.cancel()
        self._counters.handshakes["done"] += 1
        self._counters.verdicts[creator.verdict.value] += 1
        return connection

    def _handshake_failed(self, key: KubeletKey, error: Exception, overdue: bool) -> RequestFailed:
        results = self._counters.handshakes
        if overdue:
            results["timeout"] += 1
            text = f"{key} has not finished the TLS handshake in {HANDSHAKE_TIMEOUT:g} s"
            return RequestFailed(504, text)
        if isinstance(error, KubeletNotTrusted):
            results["not_trusted"] += 1
            return RequestFailed(502, f"{key} is not trusted: {error}")
        results["failed"] += 1
        if isinstance(error, StreamFailed):
            # The node or its agent was lost, not the kubelet.
            return RequestFailed(status_of(error.code), f"{key}: {error.text}")
        closed = isinstance(error, ConnectionDone | ConnectionLost)
        problem = "it has closed the connection" if closed else str(error)
        return RequestFailed(502, f"TLS with {key} has failed: {problem}")
