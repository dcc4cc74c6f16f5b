"""The agents' listener: from a verified certificate and a HELLO to a session in the registry."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocol
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.authority import join_authority
from yurttunnel.pki.identity import (
    BadIdentity,
    Identifiers,
    NodeIdentity,
    identity_from_certificate,
    parse_identifiers,
    uncovered,
)
from yurttunnel.server.refused_peers import RefusedPeers
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.interfaces import IStream, IStreamAcceptor, IStreamRequest
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits
from yurttunnel.wire.stream_table import Side

MAX_UNFINISHED = 2048
"""Connections that may be before the end of their HELLO at the same time."""


@implementer(IStreamAcceptor)
class RefuseStreams:
    """What the server answers to agents that want to open streams: nothing is for them here."""

    def stream_requested(self, request: IStreamRequest) -> None:
        """Refuse."""
        request.fail(Code.DENIED, "the server opens no connections for agents")


@implementer(INodeSession)
class NodeSession:
    """A node's session, as the registry holds it."""

    def __init__(self, identity: NodeIdentity, identifiers: Identifiers, tunnel: TunnelSession):
        self.node = identity.node
        self.identity = identity
        self.identifiers = identifiers
        self.tunnel = tunnel

    @property
    def draining(self) -> bool:
        """Whether one of the ends wants no new streams."""
        return self.tunnel.going_away

    def open_stream(
        self, host: str, port: int, timeout: float, request_id: str
    ) -> Deferred[IStream]:
        """Open a stream to a target at the node."""
        return self.tunnel.open_stream(host, port, timeout, request_id)

    def snapshot(self) -> SessionSnapshot:
        """Describe the session at this moment."""
        return self.tunnel.snapshot()


@dataclass(frozen=True, slots=True)
class AgentListenerSettings:
    """What the agents' listener tells agents and allows them.

    ``return_grace`` is in seconds, see :class:`TunnelSession`. ``name`` names the server in
    logs, ``software`` its version.
    """

    limits: Limits
    return_grace: float
    name: str
    software: str
    process: bytes = field(default_factory=lambda: os.urandom(16))


class AgentListener(Factory):
    """The factory behind port 10262, under TLS that has verified the client's certificate.

    ``is_revoked`` says of a node's identity whether it is still good, ``others`` are the
    protocols that share the port, by their ALPN.
    """

    _log = Logger()
    noisy = False

    def __init__(
        self,
        context: SessionContext,
        registry: SessionRegistry,
        is_revoked: Callable[[NodeIdentity], bool],
        settings: AgentListenerSettings,
        others: Mapping[bytes, Callable[[], IProtocol]],
    ) -> None:
        self._context = context
        self._registry = registry
        self._is_revoked = is_revoked
        self._settings = settings
        self._others = others
        self._unfinished: set[SessionConnection] = set()
        self._sessions: dict[bytes, NodeSession] = {}
        self._draining = False
        self._refused_peers = RefusedPeers(context.clock, self._log)

    def sessions(self) -> list[TunnelSession]:
        """Give all sessions, those too that have been replaced and still end their streams."""
        return [session.tunnel for session in self._sessions.values()]

    def drain(self, text: str) -> None:
        """Take no new agents, and let the sessions end with their last stream."""
        self._draining = True
        self._close_disconnected()
        for session in self.sessions():
            session.go_away(text)

    def close_sessions(self, code: Code, text: str) -> None:
        """End every session now."""
        for session in self.sessions():
            session.close(code, text)
        for connection in list(self._unfinished):
            connection.abandon()

    def revoke(self, node: str) -> None:
        """End the sessions of a node whose certificate has been revoked."""
        for session in list(self._sessions.values()):
            if session.node == node and self._is_revoked(session.identity):
                self._log.info("{node}: revoked, its session is ended", node=node)
                session.tunnel.close(Code.REVOKED, f"node {node} has been revoked")

    # -- Factory, ConnectionOwner --------------------------------------------------------------

    def buildProtocol(self, addr: IAddress | None) -> SessionConnection | None:
        """Take a connection, unless too many are about to begin already."""
        if len(self._unfinished) >= MAX_UNFINISHED:
            return None
        connection = SessionConnection(self._context.clock, self, self._others)
        self._unfinished.add(connection)
        return connection

    def connection_ready(self, connection: SessionConnection) -> None:
        """Wait for the agent's HELLO."""

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Log connections that came to nothing; the others have a session that knows."""
        if self._draining:
            self._close_disconnected()
        if connection in self._unfinished:
            self._unfinished.remove(connection)
            if connection.handed_over:
                return
            text = "a connection from {address} has not become a session"
            self._refused_peers.warn(text, reason, address=_address(connection))

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Resume the session that the agent asks for, or begin a new one."""
        identity = self._identity(connection)
        identifiers = self._identifiers(identity, hello)
        session = self._sessions.get(hello.session) if hello.session != NO_SESSION else None
        if session is not None and _belongs_to(session, identity, hello):
            self._unfinished.discard(connection)
            self._resume(connection, session, identity, hello)
        elif self._draining:
            raise Violation(Code.GOING_AWAY, "this server is about to stop")
        else:
            self._unfinished.discard(connection)
            self._begin(connection, identity, identifiers, hello)

    def _close_disconnected(self) -> None:
        """End the sessions whose agents could not come back to a server that stops."""
        for session in self.sessions():
            if not session.connected:
                session.close(Code.GOING_AWAY, "the connection was lost while the server stops")

    def _resume(
        self,
        connection: SessionConnection,
        session: NodeSession,
        identity: NodeIdentity,
        hello: Hello,
    ) -> None:
        tunnel = session.tunnel
        if not tunnel.wire.can_resume(hello.received):
            text = f"{hello.received} bytes received of a session that has sent another number"
            tunnel.close(Code.PROTOCOL, text)
            raise Violation(Code.PROTOCOL, text)
        # It may have been renewed, or be of a newer enrolment; and have a new address.
        session.identity = identity
        tunnel.description = self._description(connection, identity)
        connection.send_hello(self._hello(tunnel.session_id, tunnel.wire.received))
        connection.start(tunnel, hello)
        self._log.info("{node}: back, its session goes on", node=identity.node)

    def _begin(
        self,
        connection: SessionConnection,
        identity: NodeIdentity,
        identifiers: Identifiers,
        hello: Hello,
    ) -> None:
        own = self._hello(os.urandom(16), 0)
        # What it has received counts in the session that it asked for, not in the new one.
        hello = replace(hello, received=0)
        description = self._description(connection, identity)
        tunnel = TunnelSession(
            self._context, Side.SERVER, own, hello, description, self._settings.return_grace
        )
        session = NodeSession(identity, identifiers, tunnel)
        tunnel.on_closed.append(lambda code, text: self._ended(session, code, text))
        self._sessions[own.session] = session
        connection.send_hello(own)
        replaced = self._registry.add(session)
        if isinstance(replaced, NodeSession):
            self._replace(replaced, hello)
        connection.start(tunnel, hello)
        self._log.info(
            "{node}: connected from {address}, session {session}",
            node=identity.node,
            address=description.address,
            session=own.session.hex()[:8],
        )

    def _replace(self, replaced: NodeSession, hello: Hello) -> None:
        """End the session that a node had before, unless it is ending by itself already."""
        if replaced.draining:
            return
        if replaced.tunnel.wire.peer.process == hello.process:
            replaced.tunnel.close(Code.REPLACED, "the agent has begun a new session")
        elif replaced.tunnel.connected:
            # Perhaps two agents run as this node; the one that is told waits before it returns.
            replaced.tunnel.close(Code.REPLACED, "another agent of the node has connected")
        else:
            replaced.tunnel.close(Code.SESSION_LOST, "the agent has been restarted")

    def _ended(self, session: NodeSession, code: Code, text: str) -> None:
        self._sessions.pop(session.tunnel.session_id, None)
        self._registry.remove(session)
        self._log.info(
            "{node}: session {session} has ended: {text} ({code})",
            node=session.node,
            session=session.tunnel.session_id.hex()[:8],
            text=text,
            code=code.name,
        )

    def _description(
        self, connection: SessionConnection, identity: NodeIdentity
    ) -> PeerDescription:
        return PeerDescription(
            local_name=self._settings.name,
            peer_name=identity.node,
            address=_address(connection),
            certificate_not_after=identity.not_after,
        )

    def _identity(self, connection: SessionConnection) -> NodeIdentity:
        certificate = connection.peer_certificate
        if certificate is None:
            raise Violation(Code.NOT_AUTHORIZED, "the agent has shown no certificate")
        try:
            identity = identity_from_certificate(certificate)
        except BadIdentity as error:
            raise Violation(Code.NOT_AUTHORIZED, str(error)) from error
        if self._is_revoked(identity):
            raise Violation(Code.REVOKED, f"node {identity.node} has been revoked")
        return identity

    def _identifiers(self, identity: NodeIdentity, hello: Hello) -> Identifiers:
        claimed = hello.properties.get("identifiers")
        if not claimed:
            return identity.identifiers
        try:
            identifiers = parse_identifiers(claimed)
        except ValueError as error:
            raise Violation(Code.PROTOCOL, f"node {identity.node}: {error}") from error
        missing = uncovered(identity, identifiers)
        if missing:
            raise Violation(
                Code.NOT_AUTHORIZED,
                f"the certificate of node {identity.node} does not cover {', '.join(missing)}",
            )
        return identifiers

    def _hello(self, session: bytes, received: int) -> Hello:
        return Hello(
            limits=self._settings.limits,
            session=session,
            process=self._settings.process,
            received=received,
            properties={"software": self._settings.software},
        )


def _belongs_to(session: NodeSession, identity: NodeIdentity, hello: Hello) -> bool:
    return (
        not session.tunnel.closed
        and session.node == identity.node
        and session.tunnel.wire.peer.process == hello.process
    )


def _address(connection: SessionConnection) -> str:
    peer = connection.transport.getPeer()
    if isinstance(peer, IPv4Address | IPv6Address):
        return join_authority(peer.host, peer.port)
    return str(peer)
