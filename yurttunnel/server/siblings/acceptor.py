"""The accepting side: reports this server's nodes to siblings, and opens streams to them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace

from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.evicting_set import EvictingSet
from yurttunnel.pki.cluster_identity import check_sibling
from yurttunnel.pki.names import BadIdentity
from yurttunnel.server.agents import (
    SERVER_NAME,
    check_resumable,
    close_disconnected,
    is_connected_already,
)
from yurttunnel.server.handshake_failures import HandshakeFailureLog, peer_authority
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.siblings.feed import FEED_HOST, FeedWriter
from yurttunnel.server.siblings.hello import sibling_hello
from yurttunnel.tunnel.connection import MAX_UNFINISHED, SessionConnection
from yurttunnel.tunnel.interfaces import IStream, IStreamAcceptor, IStreamRequest, StreamFailed
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.tunnel.shares import Holder
from yurttunnel.tunnel.splicing import splice_streams
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.tunnel.tls import SIBLING_ALPN
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello
from yurttunnel.wire.stream_table import Side

MAX_SESSIONS = 256
"""The maximum number of siblings' sessions, including those that are ending."""

_TARGET = re.compile(r"([1-9][0-9]{0,9})/([A-Za-z0-9_-]{12})/(.+)", re.ASCII | re.DOTALL)


@implementer(IStreamAcceptor)
class SiblingStreams:
    """Serves the streams of a sibling, over direct sessions only: requests cannot loop."""

    _log = Logger()

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self._feed: FeedWriter | None = None

    def stream_requested(self, request: IStreamRequest) -> None:
        """Respond with the list of nodes, or with a stream to a target at one of them."""
        if request.host == FEED_HOST:
            self._serve_node_list(request)
            return
        target = _TARGET.fullmatch(request.host)
        try:
            holder = None if target is None else Holder.parse(target[2])
        except ValueError:
            holder = None
        if target is None or holder is None:
            text = (
                f"{request.host} is not NUMBER/HOLDER/HOST, as servers address each other's nodes"
            )
            request.fail(Code.BAD_DESTINATION, text)
            return
        node = None if self._feed is None else self._feed.node(int(target[1]))
        session = None if node is None else self._registry.direct(node)
        if session is None:
            text = "the server no longer has a session with the node"
            request.fail(Code.SESSION_LOST, text)
            return
        dial = session.open_without_fallback(
            target[3], request.port, request.timeout, request.request_id, holder
        )
        request.on_cancel(dial.cancel)
        _ = dial.addCallbacks(
            self._dialed, self._not_dialed, callbackArgs=(request,), errbackArgs=(request, node)
        )

    def _serve_node_list(self, request: IStreamRequest) -> None:
        if self._feed is not None:
            request.fail(Code.DENIED, "a session has one list of nodes")
            return
        self._feed = FeedWriter(self._registry)
        request.accept().attach(self._feed)

    def _dialed(self, stream: IStream, request: IStreamRequest) -> None:
        splice_streams(request.accept(), stream)

    def _not_dialed(self, reason: Failure, request: IStreamRequest, node: str) -> None:
        error = reason.value
        if isinstance(error, StreamFailed):
            request.fail(error.code, error.text)
            return
        self._log.failure(
            "Opening stream {request_id} to {node} for a sibling failed by a defect of this server",
            reason,
            request_id=request.request_id,
            node=node,
        )
        request.fail(Code.INTERNAL, "internal error: see the log of the server that has the node")


class SiblingAcceptor:
    """Starts and resumes the sessions that siblings request.

    ``budget`` is the memory of all sessions of the process, whose id is ``process``. ``accepted()``
    is called for each new session.
    """

    _log = Logger()

    def __init__(
        self,
        context: SessionContext,
        registry: SessionRegistry,
        process: bytes,
        accepted: Callable[[], object],
    ) -> None:
        self.counters = TunnelCounters()
        self._clock = context.clock
        self._budget: MemoryBudget = context.budget
        self._registry = registry
        self._process = process
        self._accepted = accepted
        self._unfinished = EvictingSet(MAX_UNFINISHED, SessionConnection.evicted)
        self._sessions: dict[bytes, TunnelSession] = {}
        self._draining = False
        self._handshake_failures = HandshakeFailureLog(self._clock, self._log)

    def sessions(self) -> list[TunnelSession]:
        """Return the sessions of all siblings."""
        return list(self._sessions.values())

    def build(self) -> SessionConnection:
        """Return the protocol for a connection after its handshake."""
        connection = SessionConnection(self._clock, self, alpn=SIBLING_ALPN)
        self._unfinished.add(connection)
        return connection

    def drain(self, text: str) -> None:
        """Reject new siblings, and let the sessions end with their last stream."""
        self._draining = True
        for tunnel in self.sessions():
            tunnel.drain(text)
        close_disconnected(self.sessions())

    def close(self, code: Code, text: str) -> None:
        """Reject new siblings, and close all sessions now."""
        self._draining = True
        for tunnel in self.sessions():
            tunnel.close(code, text)

    # -- ConnectionOwner -----------------------------------------------------------------------

    def connection_ready(self, connection: SessionConnection) -> None:
        """Do nothing: the sibling sends its HELLO first."""

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Report connections that did not become a session."""
        self._unfinished.discard(connection)
        if self._draining:
            close_disconnected(self.sessions())
        if not connection.session_started and not is_connected_already(reason):
            text = "a connection from a sibling at {address} has not become a session"
            self._handshake_failures.warn(
                text, reason, address=peer_authority(connection.transport)
            )

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Resume the session that the sibling names, or start a new one."""
        self._check(connection, hello)
        self._unfinished.discard(connection)
        tunnel = self._sessions.get(hello.session) if hello.session != NO_SESSION else None
        if tunnel is not None and tunnel.wire.peer.process == hello.process:
            self._resume(connection, tunnel, hello)
        elif self._draining:
            raise Violation(Code.GOING_AWAY, "this server is about to stop")
        elif len(self._sessions) >= MAX_SESSIONS:
            text = f"this server has {MAX_SESSIONS} sessions with siblings already"
            raise Violation(Code.OVERLOADED, text)
        else:
            self._begin(connection, hello)

    # -- helpers -------------------------------------------------------------------------------

    def _check(self, connection: SessionConnection, hello: Hello) -> None:
        certificate = connection.peer_certificate
        if certificate is None:
            raise Violation(Code.NOT_AUTHORIZED, "the sibling has shown no certificate")
        try:
            check_sibling(certificate)
        except BadIdentity as error:
            raise Violation(Code.NOT_AUTHORIZED, f"not a server's: {error}") from error
        if hello.process == self._process:
            raise Violation(Code.ALREADY_CONNECTED, "this server has dialed itself")

    def _resume(self, connection: SessionConnection, tunnel: TunnelSession, hello: Hello) -> None:
        check_resumable(tunnel, hello)
        tunnel.description = self._description(connection)
        connection.send_hello(self._hello(tunnel.session_id, tunnel.wire.received))
        connection.start(tunnel, hello)

    def _begin(self, connection: SessionConnection, hello: Hello) -> None:
        acceptor = SiblingStreams(self._registry)
        context = SessionContext(self._clock, self.counters, self._budget, acceptor)
        own = self._hello(os.urandom(16), 0)
        # The number of bytes received belongs to the requested session, not to the new one.
        hello = replace(hello, received=0)
        description = self._description(connection)
        tunnel = TunnelSession(context, Side.SERVER, own, hello, description)
        tunnel.on_closed.append(lambda code, text: self._ended(tunnel))
        self._sessions[own.session] = tunnel
        connection.send_hello(own)
        connection.start(tunnel, hello)
        self._log.info("a sibling has connected from {address}", address=description.address)
        self._accepted()

    def _ended(self, tunnel: TunnelSession) -> None:
        self._sessions.pop(tunnel.session_id, None)

    def _description(self, connection: SessionConnection) -> PeerDescription:
        address = peer_authority(connection.transport)
        return PeerDescription(SERVER_NAME, f"sibling at {address}", address)

    def _hello(self, session: bytes, received: int) -> Hello:
        return sibling_hello(self._process, session, received)
