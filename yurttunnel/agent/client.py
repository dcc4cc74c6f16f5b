"""The agent's side of the sessions: one client for each server, which always reconnects."""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IAddress, IDelayedCall, IProtocol
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.agent.connection_group import (
    FIRST_DELAY,
    MAX_REPLACED_DELAY,
    ClientSettings,
    ConnectionGroup,
    advertised_servers,
    delay_after_replacements,
)
from yurttunnel.agent.routes import Location, Routes
from yurttunnel.http.authority import join_authority
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.tls_errors import problem_with_server
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import (
    REPLACEMENT_TIME,
    PeerDescription,
    SessionContext,
    TunnelSession,
)
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello
from yurttunnel.wire.stream_table import Side

REPLACED_WARNING_INTERVAL = 600.0
"""Seconds between two warnings that another agent has taken over the session."""

MISDIRECTED_DELAY = 0.1
MISDIRECTED_RETRIES = 8
"""The longest delay in seconds, and the number, of retries after an attempt to resume a session has
reached another server, for example behind a load balancer."""

MISDIRECTED_TIME = 1.0
"""Seconds after the loss of a connection in which only such retries are made, although another
server would start a new session: meanwhile the node has none."""

LEFT_SESSION_TIMEOUT = 60.0
"""Seconds in which a server that accepts no new streams in a session should end it, after the last
stream; the agent then does so."""

_NO_NEW_SESSION = "the agent starts no new session here"


class ServerClient(Factory):
    """Keeps a session with one server across successive connections.

    The delay before a retry is random between zero and an upper bound that doubles each time ("full
    jitter"), so that many agents do not reconnect at the same moment. The server's HELLO resets it,
    not the connection: under TLS 1.3 a client whose certificate is rejected has connected first.

    When the server goes away, or :meth:`replace_session` is called, the client is draining: it only
    waits for its streams to end, and another client of ``group`` starts a new session. The same
    applies when the server does not respond and there are spare servers: going there itself, the
    client would lose the session, whose streams the server keeps. A session is also given up if its
    server has gone for good: other clients have sessions with every existing server.

    Several addresses may lead to one server process, and one address to several. A process keeps
    one session for each node, so HELLO lists the processes with which the others of ``group`` have
    sessions. Such a process rejects the connection, and the client stands by. It retries soon while
    sessions are missing, and seldom otherwise, to find new servers.

    A session that is replaced was taken over by another agent of the same node. The client waits
    long before it takes it back, and longer each time while the sessions are short.

    ``routes`` choose the location of each attempt: ``location`` was dialed last, with ``number``
    among the clients that dial it, and at ``session_location`` the last session was started or
    resumed. ``retries`` counts attempts since the last HELLO, ``rejections`` those that reached
    another server than intended, ``failed_attempts`` those that ended before the server's HELLO
    otherwise; ``last_error`` is the reason of the last one if it failed, and ``failed_server`` its
    server. ``knows_server_count`` is whether the server has sent the number of servers.
    """

    _log = Logger()
    noisy = False

    def __init__(
        self,
        context: SessionContext,
        routes: Routes,
        settings: ClientSettings,
        group: ConnectionGroup,
    ) -> None:
        self.location: Location | None = None
        self.session_location: Location | None = None
        self.number = 0
        self.retries = 0
        self.failed_attempts = 0
        self.last_error: str | None = "not connected yet"
        self.failed_server = ""
        self.standing_by = False
        self.knows_server_count = False
        self._routes = routes
        self._context = context
        self._settings = settings
        self._group = group
        self._warnings = RateLimitedLog(context.clock, self._log, REPLACED_WARNING_INTERVAL)
        self._already_connected = False
        self.rejections = 0
        self._replaced = False
        self._replacements = 0
        self._session_started_at = 0.0
        self._connection_lost_at = 0.0
        self.draining = False
        """Whether the client only waits for its streams to end."""
        self._ended = False
        self._attempt: Deferred[IProtocol] | None = None
        self._retry_call: IDelayedCall | None = None
        self._end_call: IDelayedCall | None = None
        self._session: TunnelSession | None = None
        self._connection: SessionConnection | None = None
        # The HELLO of this side on the last connection.
        self._sent_hello: Hello

    # -- for the command -----------------------------------------------------------------------

    def start(self, within: float = 0.0) -> None:
        """Connect after a random delay of at most ``within`` seconds, and reconnect forever."""
        if within:
            self._schedule_attempt(random.uniform(0, within))
        else:
            self._attempt_connection()

    def start_standing_by(self) -> None:
        """Start standing by: try to reach another server, after a delay."""
        self.standing_by = self._already_connected = True
        self._schedule_retry()

    def retry_soon(self, within: float = FIRST_DELAY) -> None:
        """Make the scheduled attempt after a random delay of at most ``within`` seconds.

        A client whose session was replaced keeps its delay: an earlier attempt would do harm.
        """
        if self._retry_call is not None and not self._replaced:
            self._retry_call.cancel()
            self.retries = self.rejections = 0
            self._schedule_attempt(random.uniform(0, within))

    def drain(self, text: str, may_end: Callable[[], bool] = lambda: True) -> None:
        """Let the session end with its last stream, and reconnect only for its streams.

        ``may_end`` is that of :meth:`TunnelSession.drain`.
        """
        self.draining = True
        session = self._session
        if session is None:
            self._stop_reconnecting()
        elif session.connected or session.wire.unfinished:
            session.drain(text, may_end)
        else:
            session.close(Code.GOING_AWAY, text)

    def replace_session(self, text: str) -> None:
        """Let a connected session end with its last stream, and another client start a new one.

        The old session serves for at least :data:`REPLACEMENT_TIME`, even without streams: until
        there is a new one it may be the only route.
        """
        session = self._session
        if session is not None and session.connected and not self.draining:
            session.drain(text, min_delay=REPLACEMENT_TIME)
            self._start_draining()

    def close(self, code: Code, text: str) -> None:
        """Close the session now, and stop reconnecting."""
        self._stop_reconnecting()
        if self._session is not None:
            self._session.close(code, text)

    def sessions(self) -> list[TunnelSession]:
        """Return the session, if any, connected or to be resumed."""
        return [] if self._session is None else [self._session]

    @property
    def server(self) -> str:
        """The server of the last attempt, in readable form.

        It distinguishes sessions with several servers behind one address.
        """
        if self.location is None:
            return "a server"
        return join_authority(*self.location) + (f" ({self.number})" if self.number > 1 else "")

    @property
    def connected(self) -> bool:
        """Whether a connection carries the session now."""
        return self._session is not None and self._session.connected

    @property
    def process(self) -> bytes | None:
        """The server process with which there is a session, connected or to be resumed.

        ``None`` if there is no session, or only a draining one.
        """
        if self._session is None or self.draining:
            return None
        return self._session.wire.peer.process

    @property
    def sent_identifiers(self) -> str | None:
        """The identifiers sent to the server for the session, ``None`` without a session."""
        session = self._session
        return None if session is None else session.wire.local.properties["identifiers"]

    @property
    def has_session(self) -> bool:
        """Whether there is a session, which an attempt is to resume."""
        return self._session is not None

    @property
    def waiting(self) -> bool:
        """Whether there is no session, and no attempt in progress."""
        return self._session is None and self._retry_call is not None

    @property
    def problem(self) -> str:
        """The error and its server, while there is no connection."""
        server = self.failed_server or self.server
        return f"{server} ({self.last_error or 'the connection was lost'})"

    @property
    def is_connecting(self) -> bool:
        """Whether there is neither a session, nor a server that rejects a second one, nor another
        agent that has taken the session over.
        """
        return self._session is None and not (self.standing_by or self._replaced)

    def sibling_lost_session(self) -> None:
        """Reconnect soon: a server that rejected this client may accept it now."""
        if self.waiting:
            self.standing_by = False
            self.retry_soon()

    # -- attempts ------------------------------------------------------------------------------

    def _schedule_attempt(self, seconds: float) -> None:
        self._retry_call = self._context.clock.callLater(seconds, self._attempt_connection)

    def _attempt_connection(self) -> None:
        self._retry_call = None
        self._already_connected = self._replaced = False
        try:
            self._attempt = self._routes.next(self).connect(self)
        except ValueError as error:
            self._attempt = fail(error)
        _ = self._attempt.addCallbacks(self._attempt_connected, self._connection_failed)

    def _attempt_connected(self, protocol: IProtocol) -> None:
        """Do nothing: the connection has a timeout for the handshake and the HELLO."""
        self._attempt = None

    def _connection_failed(self, reason: Failure) -> None:
        self._attempt = None
        self._attempt_failed(reason)
        self._close_if_drained()
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        """Schedule a retry, unless the client has ended."""
        if self._ended:
            return
        was_standing_by = self.standing_by
        self.standing_by = self._session is None and self._already_connected
        delay = self._next_delay()
        self.retries += 1
        if self.standing_by and not was_standing_by:
            self._log.info(
                "{server}: reaches a server that is already connected; standing by",
                server=self.server,
            )
        self._schedule_attempt(delay)
        if self.standing_by:
            self._group.on_change()

    def buildProtocol(self, addr: IAddress | None) -> SessionConnection:
        """Return the protocol for one connection, above TLS."""
        self._connection = SessionConnection(self._context.clock, self)
        return self._connection

    # -- ConnectionOwner -----------------------------------------------------------------------

    def connection_ready(self, connection: SessionConnection) -> None:
        """Request to resume the session, or a new one."""
        held, kept = self._group.other_processes(self), self._group.other_sessions(self)
        session = self._session
        if session is None:
            self._sent_hello = self._settings.hello(held=held, kept=kept)
        else:
            received = session.wire.received
            self._sent_hello = self._settings.hello(session.session_id, received, held, kept)
        connection.send_hello(self._sent_hello)

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Resume, or close a session that the server does not know and start a new one."""
        session = self._session
        if session is not None and self._is_other_server(session, hello):
            raise Violation(Code.GOING_AWAY, _NO_NEW_SESSION)
        self.retries = 0
        self.last_error = None
        self.standing_by = self._already_connected = False
        self.rejections = 0
        servers = advertised_servers(hello)
        self.knows_server_count = servers is not None
        self._group.set_advertised(servers)
        if session is not None and session.session_id == hello.session:
            self._log.info("{server}: reconnected, and resumed the session", server=self.server)
            self._routes.session_started(self)
            connection.start(session, hello)
            self._group.on_change()
            return
        if self.draining:
            # Cleared first: the end of the session would abort the connection, including the
            # response.
            self._connection = None
        if session is not None:
            session.close(Code.SESSION_LOST, "the server does not know the session any more")
        if self.draining:
            raise Violation(Code.GOING_AWAY, _NO_NEW_SESSION)
        if hello.session == self._sent_hello.session:
            # The server's byte count belongs to that session, and would not fit a new one.
            raise Violation(Code.SESSION_LOST, "the session has ended here meanwhile")
        self._begin(connection, hello)

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Reconnect, unless the client itself has given up the connection."""
        current = connection is self._connection
        if current:
            self._connection = None
        self._close_if_drained()
        if not current:
            return
        if connection.session_started:
            self._connection_lost_at = self._context.clock.seconds()
            self.last_error = (
                "another agent has connected as this node; is it running twice?"
                if self._replaced
                else reason.getErrorMessage()
            )
            self.failed_server = self.server
            if not self.draining or self._session is not None:
                # After the end of the session this is expected.
                self._log.info(
                    "{server}: connection lost: {reason}",
                    server=self.server,
                    reason=self.last_error,
                )
        else:
            self._attempt_failed(reason)
        self._schedule_retry()

    # -- helpers -------------------------------------------------------------------------------

    def _next_delay(self) -> float:
        if self._replaced:
            return delay_after_replacements(self._replacements)
        if self.has_session and self._already_connected and self.rejections <= MISDIRECTED_RETRIES:
            # The session and its streams are at another server.
            return random.uniform(0, MISDIRECTED_DELAY)
        return self._group.next_delay(
            self.retries, self.rejections, self.standing_by, self.has_session
        )

    def _is_other_server(self, session: TunnelSession, hello: Hello) -> bool:
        """Return whether the session's server is another one than this, and may be alive.

        If one address leads to several servers, and some of them need no session, streams wait for
        their server until the end of the resume window. Otherwise the server of a draining session
        is gone if a server at the same address has replaced it, unless the group has a session with
        the latter.
        """
        if hello.process == session.wire.peer.process:
            return False
        group = self._group
        shares_address = len(self._routes.locations) < group.servers
        if session.wire.unfinished and group.has_spare_servers and shares_address:
            return True
        if not self.draining:
            return False
        if not self._routes.is_at_session_location(self):
            return True
        return group.has_session_with(hello.process)

    def _notify_siblings(self) -> None:
        """Notify the other clients."""
        for sibling in list(self._group.clients):
            if sibling is not self:
                sibling.sibling_lost_session()
        self._group.on_change()

    def _stop_reconnecting(self) -> None:
        """Stop attempts, including one before HELLO; later the session ends it, with CLOSE."""
        self._ended = True
        self.standing_by = False
        if self._retry_call is not None:
            self._retry_call.cancel()
            self._retry_call = None
        if self._attempt is not None:
            self._attempt.cancel()
        if self._connection is not None and not self._connection.session_started:
            self._connection.abandon()

    def _close_if_drained(self) -> None:
        """Close a draining session that has lost its connection, unless streams wait in it."""
        session = self._session
        if session is None or not self.draining:
            return
        if not session.connected and not session.wire.unfinished:
            session.close(Code.SESSION_LOST, "the connection was lost while the session ended")

    def _begin(self, connection: SessionConnection, hello: Hello) -> None:
        description = PeerDescription(
            local_name=self._settings.node, peer_name=self.server, address=self.server
        )
        session = TunnelSession(self._context, Side.AGENT, self._sent_hello, hello, description)
        session.on_closed.append(self._session_closed)
        session.on_draining.append(self._server_draining)
        session.on_servers.append(self._servers_changed)
        self._session = session
        self._session_started_at = self._context.clock.seconds()
        self._routes.session_started(self)
        self._log.info(
            "connected to {server} as {node}", server=self.server, node=self._settings.node
        )
        connection.start(session, hello)
        self._group.on_change()

    def _servers_changed(self, servers: int) -> None:
        self.knows_server_count = True
        self._group.servers_changed(servers)

    def _server_draining(self) -> None:
        """Leave a server that is draining."""
        if not self.draining:
            self._log.info(
                "{server}: the server accepts no new streams in the session", server=self.server
            )
            self._routes.failed(self)
            self._start_draining()
            self._schedule_end()

    def _schedule_end(self) -> None:
        self._end_call = self._context.clock.callLater(LEFT_SESSION_TIMEOUT, self._end_left)

    def _end_left(self) -> None:
        """Let the session that the server has left end, but only if another one serves the node."""
        self._end_call = None
        session = self._session
        if session is not None and self._group.other_processes(self):
            session.drain("the server did not end the session")
        else:
            self._schedule_end()

    def _start_draining(self) -> None:
        """Leave a new session to the other clients, and reconnect only for streams."""
        self.draining = True
        self._notify_siblings()

    def _session_closed(self, code: Code, text: str) -> None:
        self._session = None
        if self._end_call is not None:
            self._end_call.cancel()
            self._end_call = None
        if code is Code.REPLACED and not self.draining:
            self._note_replacement()
            self._group.on_change()
            return
        self._log.info("{server}: session ended: {text}", server=self.server, text=text)
        if self.draining:
            self._stop_reconnecting()
            self._group.on_change()
        else:
            self._notify_siblings()

    def _note_replacement(self) -> None:
        """Record that another agent took the session: two must not keep replacing each other."""
        lasted = self._context.clock.seconds() - self._session_started_at
        self._replacements = self._replacements + 1 if lasted < MAX_REPLACED_DELAY else 1
        self._replaced = True
        self._warnings.warn(
            "{server}: another agent has connected as node {node}; is it running twice?",
            server=self.server,
            node=self._settings.node,
        )

    def _attempt_failed(self, reason: Failure) -> None:
        if self._ended:
            return
        if _is_misdirected(reason):
            self._already_connected = True
            self.rejections += 1
            self._routes.failed(self, already_connected=True)
            self._group.already_connected += 1
            self._close_if_server_gone()
            away = self._context.clock.seconds() - self._connection_lost_at
            if self.rejections <= MISDIRECTED_RETRIES and away < MISDIRECTED_TIME:
                return
        else:
            self._note_failure(reason)
        if self.has_session and self._group.has_spare_servers and not self.draining:
            self.drain("the agent has connected to another server")
            self._notify_siblings()

    def _note_failure(self, reason: Failure) -> None:
        self.failed_attempts += 1
        self._routes.failed(self)
        error = problem_with_server(reason)
        # A repeated message adds no information.
        if error != self.last_error:
            self._log.warn("{server}: cannot connect: {error}", server=self.server, error=error)
        self.last_error = error
        self.failed_server = self.server

    def _close_if_server_gone(self) -> None:
        """Close a session whose server cannot be found, for example because it was killed in a
        drain.

        Another client has connected to its successor first.
        """
        session = self._session
        if session is None or self.rejections <= MISDIRECTED_RETRIES:
            return
        connected = self._group.other_processes(self)
        # If its process is held, it is alive: another client has a new session with it, through a
        # load balancer that leads elsewhere.
        if len(connected) >= self._group.servers and session.wire.peer.process not in connected:
            text = "the server is gone: the agent has sessions with all existing servers"
            session.close(Code.SESSION_LOST, text)


def _is_misdirected(reason: Failure) -> bool:
    """Return whether an attempt has ended because it reached another server than intended."""
    error = reason.value
    if isinstance(error, Violation):
        return error.code is Code.GOING_AWAY
    return isinstance(error, Refused) and error.code is Code.ALREADY_CONNECTED
