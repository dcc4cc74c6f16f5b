"""The agent's side of the sessions: one client for each server, which always comes back."""

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
    LONGEST_REPLACED_DELAY,
    ClientSettings,
    ConnectionGroup,
    advertised_servers,
    delay_after_replacements,
)
from yurttunnel.agent.routes import Location, Routes
from yurttunnel.http.authority import join_authority
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.problems import problem_with_server
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import SUCCESSION, PeerDescription, SessionContext, TunnelSession
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello
from yurttunnel.wire.stream_table import Side

REPLACED_WARNINGS = 600.0
"""Seconds between two warnings that another agent has taken the session."""

MISDIRECTED_DELAY = 0.1
MISDIRECTED_RETRIES = 8
"""Seconds within which to dial again, and how often, when an attempt to resume a session has led to
another server, as behind a balancer."""

_NO_NEW_SESSION = "the agent begins no new session here"


class ServerClient(Factory):
    """Holds a session with one server, over one connection after another.

    The delay before the n-th attempt is chosen evenly between nothing and an upper bound that
    doubles each time ("full jitter"), so that many agents do not return at the same moment. It
    is reset by the server's HELLO, not by the connection: under TLS 1.3 a client whose
    certificate is refused has been connected all the same.

    When the server goes away, or :meth:`begin_anew` is called, the client only waits for the ends
    of its streams, as one that drains does: another client of ``group`` begins a new session. So it
    is, too, when the server does not answer and there are others that may take its place: a client
    that goes there itself gives up the session, whose streams the server keeps. A session is given
    up, too, whose server has gone for good: others have sessions with each server that there is.

    Several addresses may lead to one server process, and one address to several. A process keeps
    one session for each node, so HELLO says with which processes the others of ``group`` have
    sessions: such a process refuses, and the client stands by. It looks again soon while there
    are sessions with too few servers, and seldom otherwise, for a server that is new.

    A session that is replaced has been taken by another agent of the same node. The client waits
    long before it takes it back, and longer each time while the sessions do not last.

    ``routes`` choose where each attempt leads to: ``location`` was dialed last, as ``number`` of
    those that dial there, and at ``home`` the last session was had or resumed. ``retries`` counts
    attempts since the last HELLO, ``failed_attempts`` those that ended before the server's HELLO,
    but for such refusals; ``last_error`` says why the last one did, if it did, and ``failed_at`` at
    which server. ``tells_servers`` says whether the server has told how many servers there are.
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
        self.home: Location | None = None
        self.number = 0
        self.retries = 0
        self.failed_attempts = 0
        self.last_error: str | None = "not connected yet"
        self.failed_at = ""
        self.standing_by = False
        self.tells_servers = False
        self._routes = routes
        self._context = context
        self._settings = settings
        self._group = group
        self._warnings = RateLimitedLog(context.clock, self._log, REPLACED_WARNINGS)
        self._held_by_sibling = False
        self._looks = 0
        self._replaced = False
        self._replacements = 0
        self._began = 0.0
        self._draining = False
        self._ended = False
        self._attempt: Deferred[IProtocol] | None = None
        self._retry_call: IDelayedCall | None = None
        self._session: TunnelSession | None = None
        self._connection: SessionConnection | None = None
        # The HELLO of this side on the last connection.
        self._asked: Hello

    # -- for the command -----------------------------------------------------------------------

    def start(self, within: float = 0.0) -> None:
        """Connect within so many seconds, and come back for ever."""
        if within:
            self._try_after(random.uniform(0, within))
        else:
            self._try_again()

    def start_by_looking(self) -> None:
        """Begin as one that stands by: look whether there is another server, but not at once."""
        self.standing_by = self._held_by_sibling = True
        self._wait()

    def look_soon(self, within: float = FIRST_DELAY) -> None:
        """Make an attempt for which the client waits within so many seconds.

        One whose session has been replaced waits on: there it would do harm.
        """
        if self._retry_call is not None and not self._replaced:
            self._retry_call.cancel()
            self.retries = self._looks = 0
            self._try_after(random.uniform(0, within))

    def drain(self, text: str, may_end: Callable[[], bool] = lambda: True) -> None:
        """Let the sessions end with their last stream, and come back for its sake only.

        ``may_end`` is as :meth:`TunnelSession.go_away` has it.
        """
        self._draining = True
        session = self._session
        if session is None:
            self._come_back_no_more()
        elif session.connected or session.wire.unfinished:
            session.go_away(text, may_end)
        else:
            session.close(Code.GOING_AWAY, text)

    def begin_anew(self, text: str) -> None:
        """Let a connected session end with its last stream, and another client begin another one.

        The old one serves for :data:`SUCCESSION` at least, also without a stream: until the new one
        is there it may be the only way.
        """
        session = self._session
        if session is not None and session.connected and not self._draining:
            session.go_away(text, least=SUCCESSION)
            self._set_aside()

    def close(self, code: Code, text: str) -> None:
        """End the session now, and come back no more."""
        self._come_back_no_more()
        if self._session is not None:
            self._session.close(code, text)

    def sessions(self) -> list[TunnelSession]:
        """Return the session, if there is one, connected or to be resumed."""
        return [] if self._session is None else [self._session]

    @property
    def server(self) -> str:
        """Where the last attempt has led to, for people.

        Sessions with several servers behind one address are told apart.
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

        ``None`` when there is no session, or none that lasts.
        """
        if self._session is None or self._draining:
            return None
        return self._session.wire.peer.process

    @property
    def claimed(self) -> str | None:
        """The identifiers that the server was told for the session, ``None`` without one."""
        session = self._session
        return None if session is None else session.wire.local.properties["identifiers"]

    @property
    def draining(self) -> bool:
        """Whether the client only waits for the ends of its streams."""
        return self._draining

    @property
    def resumes(self) -> bool:
        """Whether there is a session, which an attempt is to resume."""
        return self._session is not None

    @property
    def waiting(self) -> bool:
        """Whether there is no session, and no attempt under way to get one."""
        return self._session is None and self._retry_call is not None

    @property
    def problem(self) -> str:
        """What is wrong, and where, while there is no connection."""
        return f"{self.failed_at or self.server} ({self.last_error or 'the connection was lost'})"

    @property
    def on_its_way(self) -> bool:
        """Whether there is neither a session nor a server that refuses a second one."""
        return self._session is None and not self.standing_by

    def sibling_lost_session(self) -> None:
        """Connect soon: what has been in vain may not be so any more."""
        if self.waiting:
            self.standing_by = False
            self.look_soon()

    # -- attempts ------------------------------------------------------------------------------

    def _try_after(self, seconds: float) -> None:
        self._retry_call = self._context.clock.callLater(seconds, self._try_again)

    def _try_again(self) -> None:
        self._retry_call = None
        self._held_by_sibling = self._replaced = False
        try:
            self._attempt = self._routes.next(self).connect(self)
        except ValueError as error:
            self._attempt = fail(error)
        _ = self._attempt.addCallbacks(self._attempt_connected, self._no_connection)

    def _attempt_connected(self, protocol: IProtocol) -> None:
        """Wait for the handshake and the HELLO, for which the connection has a deadline."""
        self._attempt = None

    def _no_connection(self, reason: Failure) -> None:
        self._attempt = None
        self._attempt_failed(reason)
        self._close_lost()
        self._wait()

    def _wait(self) -> None:
        """Try again later, unless the client comes back no more."""
        if self._ended:
            return
        stood_by = self.standing_by
        self.standing_by = self._session is None and self._held_by_sibling
        delay = self._next_delay()
        self.retries += 1
        if self.standing_by and not stood_by:
            self._log.info(
                "{server}: leads to a server that is connected already; stands by",
                server=self.server,
            )
        self._try_after(delay)
        if self.standing_by:
            self._group.changed()

    def buildProtocol(self, addr: IAddress | None) -> SessionConnection:
        """Make the protocol of one connection, above TLS."""
        self._connection = SessionConnection(self._context.clock, self)
        return self._connection

    # -- ConnectionOwner -----------------------------------------------------------------------

    def connection_ready(self, connection: SessionConnection) -> None:
        """Ask for the session to go on, or for a new one."""
        held, kept = self._group.held_by_others(self), self._group.kept_by_others(self)
        session = self._session
        if session is None:
            self._asked = self._settings.hello(held=held, kept=kept)
        else:
            received = session.wire.received
            self._asked = self._settings.hello(session.session_id, received, held, kept)
        connection.send_hello(self._asked)

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Go on, or end what the server does not know and begin anew."""
        session = self._session
        if session is not None and self._is_astray(session, hello):
            raise Violation(Code.GOING_AWAY, _NO_NEW_SESSION)
        self.retries = 0
        self.last_error = None
        self.standing_by = self._held_by_sibling = False
        self._looks = 0
        servers = advertised_servers(hello)
        self.tells_servers = servers is not None
        self._group.told(servers)
        if session is not None and session.session_id == hello.session:
            self._log.info("{server}: back, the session goes on", server=self.server)
            self._routes.arrived(self)
            connection.start(session, hello)
            self._group.changed()
            return
        if self._draining:
            # Forgotten first: the end of the session would abort it, with the answer.
            self._connection = None
        if session is not None:
            session.close(Code.SESSION_LOST, "the server does not know the session any more")
        if self._draining:
            raise Violation(Code.GOING_AWAY, _NO_NEW_SESSION)
        if hello.session == self._asked.session:
            # The server's count is of that one, and would not fit a new one.
            raise Violation(Code.SESSION_LOST, "the session has ended here meanwhile")
        self._begin(connection, hello)

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Come back, unless the client has done with the connection itself."""
        current = connection is self._connection
        if current:
            self._connection = None
        self._close_lost()
        if not current:
            return
        if connection.greeted:
            self.last_error = reason.getErrorMessage()
            self.failed_at = self.server
            if not self._draining or self._session is not None:
                # Behind the end of the session it is what was to come.
                self._log.info(
                    "{server}: connection lost: {reason}",
                    server=self.server,
                    reason=self.last_error,
                )
        else:
            self._attempt_failed(reason)
        self._wait()

    # -- helpers -------------------------------------------------------------------------------

    def _next_delay(self) -> float:
        if self._replaced:
            return delay_after_replacements(self._replacements)
        if self.resumes and self._held_by_sibling and self._looks <= MISDIRECTED_RETRIES:
            # The session and its streams wait at another server.
            return random.uniform(0, MISDIRECTED_DELAY)
        return self._group.next_delay(self.retries, self._looks, self.standing_by, self.resumes)

    def _is_astray(self, session: TunnelSession, hello: Hello) -> bool:
        """Return whether the server of a session that ends is another one than this, and may live.

        None at another address has come in its place, nor one with which there is a session.
        """
        if not self._draining or hello.process == session.wire.peer.process:
            return False
        return not self._routes.at_home(self) or self._group.knows(hello.process)

    def _lost_session(self) -> None:
        """Have the others know."""
        for sibling in list(self._group.clients):
            if sibling is not self:
                sibling.sibling_lost_session()
        self._group.changed()

    def _come_back_no_more(self) -> None:
        """End attempts, also one before its HELLO; after it the session ends it, with a CLOSE."""
        self._ended = True
        self.standing_by = False
        if self._retry_call is not None:
            self._retry_call.cancel()
            self._retry_call = None
        if self._attempt is not None:
            self._attempt.cancel()
        if self._connection is not None and not self._connection.greeted:
            self._connection.abandon()

    def _close_lost(self) -> None:
        """End a session that drains and has lost its connection, unless something waits in it."""
        session = self._session
        if session is None or not self._draining:
            return
        if not session.connected and not session.wire.unfinished:
            session.close(Code.SESSION_LOST, "the connection was lost while the session ended")

    def _begin(self, connection: SessionConnection, hello: Hello) -> None:
        description = PeerDescription(
            local_name=self._settings.node, peer_name=self.server, address=self.server
        )
        session = TunnelSession(self._context, Side.AGENT, self._asked, hello, description)
        session.on_closed.append(self._session_closed)
        session.on_going_away.append(self._leave)
        session.on_servers_told.append(self._told_meanwhile)
        self._session = session
        self._began = self._context.clock.seconds()
        self._routes.arrived(self)
        self._log.info(
            "connected to {server} as {node}", server=self.server, node=self._settings.node
        )
        connection.start(session, hello)
        self._group.changed()

    def _told_meanwhile(self, servers: int) -> None:
        self.tells_servers = True
        self._group.told_meanwhile(servers)

    def _leave(self) -> None:
        """Leave a server that goes away."""
        if not self._draining:
            self._log.info(
                "{server}: the server wants no new streams in the session", server=self.server
            )
            self._routes.failed(self)
            self._set_aside()

    def _set_aside(self) -> None:
        """Leave a new session to the others, and come back for the sake of streams only."""
        self._draining = True
        self._lost_session()

    def _session_closed(self, code: Code, text: str) -> None:
        self._session = None
        if code is Code.REPLACED and not self._draining:
            self._note_replacement()
            self._group.changed()
            return
        self._log.info("{server}: session ended: {text}", server=self.server, text=text)
        if self._draining:
            self._come_back_no_more()
            self._group.changed()
        else:
            self._lost_session()

    def _note_replacement(self) -> None:
        """Remember that another agent has taken the session: two that fight help nobody."""
        lasted = self._context.clock.seconds() - self._began
        self._replacements = self._replacements + 1 if lasted < LONGEST_REPLACED_DELAY else 1
        self._replaced = True
        self._warnings.warn(
            "{server}: another agent has connected as node {node}; is it running twice?",
            server=self.server,
            node=self._settings.node,
        )

    def _attempt_failed(self, reason: Failure) -> None:
        if self._ended:
            return
        if _has_led_astray(reason):
            self._held_by_sibling = True
            self._looks += 1
            self._routes.failed(self, already_connected=True)
            self._group.refusals += 1
            self._give_up_without_server()
            return
        self.failed_attempts += 1
        self._routes.failed(self)
        error = problem_with_server(reason)
        # The same message again and again tells nothing.
        if error != self.last_error:
            self._log.warn("{server}: cannot connect: {error}", server=self.server, error=error)
        self.last_error = error
        self.failed_at = self.server
        if self.resumes and self._group.spare and not self._draining:
            self.drain("the agent has gone to another server meanwhile")
            self._lost_session()

    def _give_up_without_server(self) -> None:
        """End a session whose server is looked for in vain, as when it was killed while it left.

        Who has come to its successor first was another client.
        """
        session = self._session
        if session is None or self._looks <= MISDIRECTED_RETRIES:
            return
        held = self._group.held_by_others(self)
        # One of the same server has begun anew, which is behind a balancer that leads elsewhere.
        if len(held) >= self._group.servers and session.wire.peer.process not in held:
            text = "its server has gone: there are sessions with all that there are"
            session.close(Code.SESSION_LOST, text)


def _has_led_astray(reason: Failure) -> bool:
    """Return whether an attempt has ended since the server is not the one that was looked for."""
    error = reason.value
    if isinstance(error, Violation):
        return error.code is Code.GOING_AWAY
    return isinstance(error, Refused) and error.code is Code.ALREADY_CONNECTED
