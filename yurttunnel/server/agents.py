"""The agents' listener: verifies certificates and HELLOs, and adds sessions to the registry."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.interfaces import IAddress, IProtocol
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel import __version__
from yurttunnel.http.evicting_set import EvictingSet
from yurttunnel.metrics import Metric, counter, counts_of
from yurttunnel.pki.identity import Identifiers, NodeIdentity, identity_from_certificate
from yurttunnel.pki.names import BadIdentity
from yurttunnel.server.handshake_failures import HandshakeFailureLog, peer_authority
from yurttunnel.server.node_session import RESTARTED, NodeSession, granted_identifiers
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.tunnel.connection import MAX_UNFINISHED, SessionConnection
from yurttunnel.tunnel.interfaces import IStreamAcceptor, IStreamRequest
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, SERVERS, Hello, Limits, held_processes, kept_sessions
from yurttunnel.wire.stream_table import Side

REFUSALS = (
    "not_authorized",
    "revoked",
    "tls",
    "timeout",
    "version",
    "going_away",
    "overloaded",
    "lost",
)
"""Why connections do not become sessions; all other reasons count as ``protocol``."""

REFUSAL_METRICS: tuple[Metric[Counter[str]], ...] = (
    counter(
        "yurttunnel_server_refused_agents",
        "Connections to the agents' port that did not become a session, by reason."
        " not_authorized: a certificate that does not match the claimed node, or is not one of the"
        " tunnel's, which may be an attack; revoked: the node was revoked; tls: no trusted"
        " certificate, or none at all; timeout and lost: network problems, and scanners;"
        " overloaded: too many unfinished handshakes; going_away: this server was stopping. The"
        " log has each with its address.",
        lambda refusals: counts_of((*REFUSALS, "protocol"), refusals),
        "reason",
    ),
)

SERVER_NAME = "server"
"""The name of this end of a session for display."""

MAX_SESSIONS_OF_NODE = 8
"""The maximum number of sessions of a node, including those that are ending or disconnected.

Several agents in succession may still be finishing their streams, each for its drain timeout.
"""


@implementer(IStreamAcceptor)
class RefuseStreams:
    """Ends sessions of peers that open streams to a server, which accepts none: no genuine agent
    does, so a peer that does wants to cause the work of each opening.
    """

    def stream_requested(self, request: IStreamRequest) -> None:
        """End the session."""
        raise Violation(Code.PROTOCOL, "the server opens no connections for its peer")


@dataclass(frozen=True, slots=True)
class AgentListenerSettings:
    """What agents are allowed; ``return_grace`` is in seconds, see :class:`TunnelSession`."""

    limits: Limits
    return_grace: float


class AgentListener(Factory):
    """The factory of port 10262, under TLS, which has verified the client's certificate.

    ``is_revoked`` returns whether a node's identity was revoked, ``others`` are the protocols that
    share the port, by ALPN. ``identify`` returns a node's identity from its certificate, or raises
    :class:`BadIdentity`. ``replicas()`` returns the number of servers, which is sent to agents;
    ``None`` if it is unknown.
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
        identify: Callable[[x509.Certificate], NodeIdentity] = identity_from_certificate,
        replicas: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._context = context
        self._registry = registry
        self._is_revoked = is_revoked
        self.settings = settings
        """The settings for new sessions."""
        self._others = dict(others)
        self._identify = identify
        self._replicas = replicas
        self._reported_replicas: int | None = None
        self.process = os.urandom(16)
        """Identifies this process in HELLOs."""
        self._unfinished = EvictingSet(MAX_UNFINISHED, SessionConnection.evicted)
        self._handed_over: set[SessionConnection] = set()
        self._sessions: dict[bytes, NodeSession] = {}
        self._sessions_by_connection: dict[SessionConnection, NodeSession] = {}
        self._draining = False
        registry.on_remote_available.append(self._sibling_serves)
        self._handshake_failures = HandshakeFailureLog(context.clock, self._log)
        self.refusals: Counter[str] = Counter()
        """Connections that did not become sessions, by reason (``REFUSALS``)."""
        self.on_sessions_draining: list[Callable[[frozenset[INodeSession]], object]] = []
        """Callbacks that close idle connections in draining or disconnected sessions."""
        self.on_ended: list[Callable[[str, str], object]] = []
        """Callbacks for each session that has ended, with the name of its node and the reason."""
        self.on_interrupted: list[Callable[[str, str], object]] = []
        """Callbacks for each node whose session has lost its connection, or was taken over by
        another agent, with the reason."""
        self.on_closing: list[Callable[[Code, str], object]] = []
        """Callbacks that end what else shares the port, together with the sessions."""

    def sessions(self) -> list[TunnelSession]:
        """Return all sessions, including replaced ones that are finishing their streams."""
        return [session.tunnel for session in self._sessions.values()]

    def drain(self, text: str) -> None:
        """Reject new agents, and let the sessions end with their last stream."""
        self._draining = True
        close_disconnected(self.sessions())
        for session in self.sessions():
            session.drain(text)

    def close_sessions(self, code: Code, text: str) -> None:
        """Close all sessions now."""
        for session in self.sessions():
            session.close(code, text)
        for callback in self.on_closing:
            callback(code, text)
        for connection in [*self._unfinished, *self._handed_over]:
            # A connection that is being closed still has data to send.
            if not connection.transport.disconnecting:
                connection.abandon()

    def share_port(self, alpn: bytes, build: Callable[[], IProtocol]) -> None:
        """Let ``build`` create the protocols of connections that negotiate ``alpn``."""
        self._others[alpn] = build

    def sessions_draining(self, sessions: frozenset[INodeSession]) -> None:
        """Have idle connections closed in sessions that are ending or disconnected."""
        for callback in self.on_sessions_draining:
            callback(sessions)

    def replicas_changed(self) -> None:
        """Send a changed number of servers to all agents, which tolerate an inaccurate one."""
        replicas = self._replicas()
        if replicas is None or replicas == self._reported_replicas:
            return
        self._reported_replicas = replicas
        for session in self.sessions():
            session.send_servers(replicas)

    def revoke(self, node: str) -> None:
        """Close the sessions of a node that was revoked, or deleted from the cluster."""
        for session in list(self._sessions.values()):
            if session.node == node and self._is_revoked(session.identity):
                self._log.info("{text}; its session is ended", text=_revoked(node), node=node)
                session.tunnel.close(Code.REVOKED, _revoked(node))

    def revoke_all(self) -> None:
        """Close the sessions of all such nodes, if it was unknown until now which these are."""
        for node in {session.node for session in self._sessions.values()}:
            self.revoke(node)

    # -- Factory, ConnectionOwner --------------------------------------------------------------

    def buildProtocol(self, addr: IAddress | None) -> SessionConnection:
        connection = SessionConnection(self._context.clock, self, self._others)
        self._unfinished.add(connection)
        return connection

    def connection_ready(self, connection: SessionConnection) -> None:
        """Wait for the agent's HELLO; the other protocols of the port have their own limits."""
        if connection.handed_over:
            self._unfinished.discard(connection)
            self._handed_over.add(connection)

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Report sessions without a connection; log connections that did not become sessions."""
        session = self._sessions_by_connection.pop(connection, None)
        if session is not None and not self._is_registered(session):
            session.tunnel.close(Code.SESSION_LOST, "the agent has not used the session")
        if session is not None and not (session.tunnel.closed or session.tunnel.connected):
            self.sessions_draining(frozenset({session}))
            self._registry.direct_changed(session.node)
            session.connection_lost()
            for callback in self.on_interrupted:
                callback(session.node, f"the connection was lost: {reason.getErrorMessage()}")
            _close_if_abandoned(session.tunnel)
        if self._draining:
            close_disconnected(self.sessions())
        self._unfinished.discard(connection)
        if connection.handed_over:
            self._handed_over.discard(connection)
        elif not (connection.session_started or is_connected_already(reason)):
            self.refusals[_reason(reason)] += 1
            text = "a connection from {address} has not become a session"
            self._handshake_failures.warn(
                text, reason, address=peer_authority(connection.transport)
            )

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Resume the session that the agent names, or start a new one."""
        identity = self._identity_of(connection)
        identifiers = granted_identifiers(identity, hello)
        session = self._sessions.get(hello.session) if hello.session != NO_SESSION else None
        if session is not None and _belongs_to(session, identity, hello):
            self._unfinished.discard(connection)
            if not self._is_registered(session):
                self._register(connection, session, hello.process, kept_sessions(hello))
            self._resume(connection, session, identity, hello)
        elif self._draining:
            raise Violation(Code.GOING_AWAY, "this server is about to stop")
        else:
            self._check_not_connected(identity, hello)
            self._begin(connection, identity, identifiers, hello)

    def _identity_of(self, connection: SessionConnection) -> NodeIdentity:
        certificate = connection.peer_certificate
        if certificate is None:
            raise Violation(Code.NOT_AUTHORIZED, "the agent has shown no certificate")
        try:
            identity = self._identify(certificate)
        except BadIdentity as error:
            raise Violation(Code.NOT_AUTHORIZED, str(error)) from error
        if self._is_revoked(identity):
            raise Violation(Code.REVOKED, _revoked(identity.node))
        return identity

    def _check_not_connected(self, identity: NodeIdentity, hello: Hello) -> None:
        """Reject an agent that has a session here already, by its own account and by ours.

        Replacing that session would end its streams. An agent that has not yet noticed the end of
        its session here is accepted.
        """
        held = self.process in held_processes(hello)
        if held and any(
            isinstance(session, NodeSession)
            and _belongs_to(session, identity, hello)
            and not session.tunnel.draining
            for session in self._registry.direct_sessions(identity.node)
        ):
            raise Violation(
                Code.ALREADY_CONNECTED,
                "the agent is already connected to this server by another of its addresses",
            )

    def _resume(
        self,
        connection: SessionConnection,
        session: NodeSession,
        identity: NodeIdentity,
        hello: Hello,
    ) -> None:
        tunnel = session.tunnel
        check_resumable(tunnel, hello)
        # The certificate may be renewed or from a later enrolment, and the address may be new.
        session.identity = identity
        tunnel.description = self._description(connection, identity)
        connection.send_hello(self._hello(tunnel.session_id, tunnel.wire.received))
        connected = tunnel.connected
        self._sessions_by_connection[connection] = session
        connection.start(tunnel, hello)
        if not connected:
            session.resumed()
            self._registry.direct_changed(session.node)
        self._log.info("{node}: reconnected, its session is resumed", node=identity.node)

    def _begin(
        self,
        connection: SessionConnection,
        identity: NodeIdentity,
        identifiers: Identifiers,
        hello: Hello,
    ) -> None:
        held_sessions = kept_sessions(hello)
        own = self._hello(os.urandom(16), 0)
        # The number of bytes received belongs to the requested session, not to the new one.
        hello = replace(hello, received=0)
        description = self._description(connection, identity)
        tunnel = TunnelSession(
            self._context, Side.SERVER, own, hello, description, self.settings.return_grace
        )
        session = NodeSession(identity, identifiers, tunnel, self._registry)
        tunnel.on_closed.append(lambda code, text: self._ended(session, code, text))
        tunnel.on_draining.append(lambda: self._session_draining(session))
        self._sessions[own.session] = session
        connection.send_hello(own)
        # Connected before it is registered, so that siblings get one report, with a usable session.
        self._sessions_by_connection[connection] = session
        register = partial(self._register, connection, session, hello.process, held_sessions)
        if hello.session == NO_SESSION:
            connection.start(tunnel, hello)
            register()
        else:
            # The agent may refuse it, because the session that it requests is at another server.
            connection.start(tunnel, hello, register)

    def _register(
        self,
        connection: SessionConnection,
        session: NodeSession,
        process: bytes,
        held_sessions: frozenset[bytes],
    ) -> None:
        """Serve the node through a new session, and end the previous ones (:meth:`_replace`)."""
        self._unfinished.discard(connection)
        older = [each for each in self._registry.add(session) if isinstance(each, NodeSession)]
        if len(older) >= MAX_SESSIONS_OF_NODE:
            text = f"the node has more than {MAX_SESSIONS_OF_NODE} sessions"
            older.pop(0).tunnel.close(Code.REPLACED, text)
        for replaced in older:
            self._replace(replaced, process, held_sessions)
        self._log.info(
            "{node}: connected from {address}, session {session}",
            node=session.node,
            address=session.tunnel.description.address,
            session=session.tunnel.session_id.hex()[:8],
        )

    def _sibling_serves(self, node: str) -> None:
        for session in self._registry.direct_sessions(node):
            if isinstance(session, NodeSession):
                session.sibling_serves()

    def _session_draining(self, session: NodeSession) -> None:
        self.sessions_draining(frozenset({session}))
        self._registry.direct_changed(session.node)

    def _replace(
        self, replaced: NodeSession, process: bytes, held_sessions: frozenset[bytes]
    ) -> None:
        """End the previous session of a node, unless it is ending already.

        The new session is from the agent's ``process``, which also has the sessions
        ``held_sessions``.
        """
        if replaced.tunnel.draining:
            replaced.close_if_replaced()
            return
        tunnel = replaced.tunnel
        is_same = tunnel.wire.peer.process == process
        if is_same and (tunnel.connected or tunnel.session_id in held_sessions):
            # Its GOAWAY travels on the other connection and may be late, or be lost with that, or
            # its clients have dialed this server at the same moment. An agent that has lost its
            # state is another process.
            tunnel.drain("the agent has started a new session")
            self.sessions_draining(frozenset({replaced}))
        elif is_same:
            tunnel.close(Code.REPLACED, "the agent has started a new session")
        elif tunnel.connected:
            # Perhaps two agents run as this node; the agent that gets this code waits before it
            # reconnects.
            text = "another agent has connected as this node; is it running twice?"
            tunnel.close(Code.REPLACED, text)
            for callback in self.on_interrupted:
                callback(replaced.node, text)
        else:
            tunnel.close(Code.SESSION_LOST, RESTARTED)

    def _ended(self, session: NodeSession, code: Code, text: str) -> None:
        self._sessions.pop(session.tunnel.session_id, None)
        if not self._is_registered(session):
            return
        self._registry.remove(session)
        for callback in self.on_ended:
            callback(session.node, self._end_reason(code, text))
        self._log.info(
            "{node}: session {session} has ended: {text} ({code})",
            node=session.node,
            session=session.tunnel.session_id.hex()[:8],
            text=text,
            code=code.name,
        )

    def _is_registered(self, session: NodeSession) -> bool:
        """Return whether the agent has accepted a session."""
        return session in self._registry.direct_sessions(session.node)

    def _end_reason(self, code: Code, text: str) -> str:
        """Return in readable form why a session has ended after which the node may be lost."""
        if code is Code.GOING_AWAY and not self._draining:
            text = "the agent has disconnected gracefully, as it does when it is stopped"
        return f"{text} ({code.name})"

    def _description(
        self, connection: SessionConnection, identity: NodeIdentity
    ) -> PeerDescription:
        return PeerDescription(
            local_name=SERVER_NAME,
            peer_name=identity.node,
            address=peer_authority(connection.transport),
            certificate_not_after=identity.not_after,
        )

    def _hello(self, session: bytes, received: int) -> Hello:
        properties = {"software": __version__}
        replicas = self._replicas()
        if replicas is not None:
            properties[SERVERS] = str(replicas)
        if replicas != self._reported_replicas:
            # This agent has another number than the others.
            self._reported_replicas = None
        return Hello(
            limits=self.settings.limits,
            session=session,
            process=self.process,
            received=received,
            properties=properties,
        )


def _belongs_to(session: NodeSession, identity: NodeIdentity, hello: Hello) -> bool:
    return (
        not session.tunnel.closed
        and session.node == identity.node
        and session.tunnel.wire.peer.process == hello.process
    )


def _close_if_abandoned(tunnel: TunnelSession) -> None:
    """Close an ending session that has lost its connection: agents return for streams only."""
    if tunnel.draining and not tunnel.wire.unfinished:
        tunnel.close(Code.SESSION_LOST, "the connection was lost while the session ended")


def _revoked(node: str) -> str:
    """Return the text for a node whose certificate is no longer valid."""
    return f"node {node} is revoked, or no longer a node of the cluster"


def _reason(reason: Failure) -> str:
    """Return in one word why a connection did not become a session."""
    error = reason.value
    if isinstance(error, Violation):
        name = error.code.name.lower()
        return name if name in REFUSALS else "protocol"
    return "tls" if isinstance(error, SSL.Error) else "lost"


def is_connected_already(reason: Failure) -> bool:
    """Return whether an agent in search of other servers was rejected, or this server had dialed
    itself: both are normal.
    """
    error = reason.value
    return isinstance(error, Violation) and error.code is Code.ALREADY_CONNECTED


def check_resumable(tunnel: TunnelSession, hello: Hello) -> None:
    """Close a session, and raise ``Violation``, if it cannot go on from where its peer is."""
    if not tunnel.wire.can_resume(hello.received):
        text = (
            f"{hello.received} bytes received of a session that has sent fewer, or has dropped the"
            " rest"
        )
        tunnel.close(Code.PROTOCOL, text)
        raise Violation(Code.PROTOCOL, text)


def close_disconnected(sessions: Iterable[TunnelSession]) -> None:
    """Close the sessions whose peers could not reconnect to a server that stops."""
    for session in sessions:
        if not session.connected:
            session.close(Code.GOING_AWAY, "the connection was lost while the server stops")
