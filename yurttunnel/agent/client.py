"""The agent's side of the sessions: one client for each server, which always comes back."""

# mypy: disallow-untyped-calls=False
# ReconnectingClientFactory has no annotations.

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from twisted.internet.interfaces import IAddress, IConnector, IStreamClientEndpoint
from twisted.internet.protocol import ReconnectingClientFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.agent.connector import EndpointConnector
from yurttunnel.pki.problems import problem_with_server
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits
from yurttunnel.wire.stream_table import Side

FIRST_DELAY = 0.3
"""A lost connection is tried again within this many seconds: streams are waiting."""

REPLACED_RETRIES = 6
"""After having been replaced by another agent the delay starts as if this many had failed."""

LONGEST_DELAY = 60.0
"""However often it has failed, the next attempt comes within this many seconds."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What the agent tells the servers of itself.

    ``identifiers`` are in the form of ``--agent-identifiers``.
    """

    node: str
    identifiers: str
    limits: Limits
    software: str
    process: bytes = field(default_factory=lambda: os.urandom(16))

    def hello(self, session: bytes = NO_SESSION, received: int = 0) -> Hello:
        """Make the HELLO that asks for a session; its size is always the same."""
        return Hello(
            limits=self.limits,
            session=session,
            process=self.process,
            received=received,
            properties={"software": self.software, "identifiers": self.identifiers},
        )


class ServerClient(ReconnectingClientFactory):
    """Holds a session with one server, over one connection after another.

    The delay before the n-th attempt is chosen evenly between nothing and an upper bound that
    doubles each time ("full jitter"), so that many agents do not return at the same moment. It
    is reset by the server's HELLO, not by the connection: under TLS 1.3 a client whose
    certificate is refused has been connected all the same.

    When the server goes away its session is left to end its streams on the old connection while
    a new session begins on a new one.

    Two addresses may lead to one server process, which keeps one session for each node, the
    newest. ``siblings`` are the clients of this agent, this one among them or not: one whose
    session has been replaced stands by while another has a session with that same process.

    ``endpoint`` leads to the server's port, TLS included. ``failed_attempts`` counts those that
    ended before the server's HELLO, ``last_error`` says why the last one did, if it did.
    """

    _log = Logger()
    noisy = False

    def __init__(
        self,
        context: SessionContext,
        server: str,
        endpoint: IStreamClientEndpoint,
        settings: ClientSettings,
        siblings: Sequence[ServerClient],
    ) -> None:
        self.server = server
        self.failed_attempts = 0
        self.last_error: str | None = "not connected yet"
        self.standing_by = False
        self.connector = self._connector = EndpointConnector(endpoint, self)
        self._context = context
        self._settings = settings
        self._siblings = siblings
        self._replaced_at: bytes | None = None
        self._replaced_by_other = False
        self._draining = False
        self._session: TunnelSession | None = None
        self._leaving: set[TunnelSession] = set()
        self._connection: SessionConnection | None = None

    # -- for the command -----------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and come back for ever."""
        self._connector.connect()

    def drain(self, text: str) -> None:
        """Let the sessions end with their last stream, and come back for its sake only."""
        self._draining = True
        for session in self.sessions():
            if session.connected or self._has_streams(session):
                session.go_away(text)
            else:
                session.close(Code.GOING_AWAY, text)
        if self._session is None:
            self._come_back_no_more()

    def close(self, code: Code, text: str) -> None:
        """End the sessions now, and come back no more."""
        self._come_back_no_more()
        for session in self.sessions():
            session.close(code, text)

    def sessions(self) -> list[TunnelSession]:
        """Give the session, and those of the same server that still end their streams."""
        current = [] if self._session is None else [self._session]
        return [*current, *self._leaving]

    @property
    def connected(self) -> bool:
        """Whether a connection carries the session now."""
        return self._session is not None and self._session.connected

    def has_session_at(self, process: bytes) -> bool:
        """Say whether there is a session with a server process, connected or to be resumed."""
        return self._session is not None and self._session.wire.peer.process == process

    def sibling_lost_session(self) -> None:
        """Connect soon, if it was that sibling for which this client stands by."""
        if self.standing_by and not self._sibling_serves():
            self.stopTrying()
            self.resetDelay()
            self.retry()

    # -- ReconnectingClientFactory -------------------------------------------------------------

    def retry(self, connector: IConnector | None = None) -> None:
        """Connect again after a while; while a sibling serves, look again after a long one."""
        if not self.continueTrying:
            return
        longest = min(FIRST_DELAY * 2 ** min(self.retries, 16), LONGEST_DELAY)
        self.delay = random.uniform(0, longest)
        self.retries += 1
        served = self._sibling_serves()
        if served:
            self.delay = LONGEST_DELAY
            self._replaced_by_other = False
        if served and not self.standing_by:
            self._log.info(
                "{server}: leads to a server that is connected by another of its addresses;"
                " stands by while it is",
                server=self.server,
            )
        self.standing_by = served
        self._callID = self._context.clock.callLater(self.delay, self._try_again)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Note why, and try again."""
        self._attempt_failed(reason)
        self._close_lost()
        super().clientConnectionFailed(connector, reason)

    def buildProtocol(self, addr: IAddress | None) -> SessionConnection:
        """Make the protocol of one connection, above TLS."""
        self._connection = SessionConnection(self._context.clock, self)
        return self._connection

    # -- ConnectionOwner -----------------------------------------------------------------------

    def connection_ready(self, connection: SessionConnection) -> None:
        """Ask for the session to go on, or for a new one."""
        session = self._session
        if session is None:
            connection.send_hello(self._settings.hello())
        else:
            hello = self._settings.hello(session.session_id, session.wire.received)
            connection.send_hello(hello)

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Go on, or end what the server does not know and begin anew."""
        self.resetDelay()
        self.last_error = None
        self._replaced_at = None
        session = self._session
        if session is not None and session.session_id == hello.session:
            self._log.info("{server}: back, the session goes on", server=self.server)
            connection.start(session, hello)
            return
        if self._draining:
            # Forgotten first: the end of the session would abort it, with the answer.
            self._connection = None
        if session is not None:
            session.close(Code.SESSION_LOST, "the server does not know the session any more")
        if self._draining:
            raise Violation(Code.GOING_AWAY, "the agent is about to stop")
        self._begin(connection, hello)

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Come back, unless the connection was that of a session that is being left."""
        current = connection is self._connection
        if current:
            self._connection = None
        self._close_lost()
        if not current:
            return
        if connection.greeted:
            self.last_error = reason.getErrorMessage()
            self._log.info(
                "{server}: connection lost: {reason}", server=self.server, reason=self.last_error
            )
        else:
            self._attempt_failed(reason)
        self.clientConnectionLost(self._connector, reason)

    # -- helpers -------------------------------------------------------------------------------

    def _try_again(self) -> None:
        self._callID = None
        if self._sibling_serves():
            self.retry()
            return
        if self._replaced_by_other:
            # Two that replace each other help nobody.
            self._replaced_by_other = False
            self._log.warn(
                "{server}: another agent has connected as node {node}; is it running twice?",
                server=self.server,
                node=self._settings.node,
            )
        self._connector.connect()

    def _sibling_serves(self) -> bool:
        process = self._replaced_at
        return process is not None and any(
            sibling is not self and sibling.has_session_at(process) for sibling in self._siblings
        )

    def _tell_siblings(self) -> None:
        for sibling in self._siblings:
            if sibling is not self:
                sibling.sibling_lost_session()

    def _has_streams(self, session: TunnelSession) -> bool:
        """Say whether coming back would save streams, as it does in the session of the moment."""
        return session is self._session and bool(session.wire.streams)

    def _come_back_no_more(self) -> None:
        """End attempts, also one before its HELLO; after it the session ends it, with a CLOSE."""
        self.stopTrying()
        self.standing_by = False
        if self._connection is not None and not self._connection.greeted:
            self._connection.abandon()

    def _close_lost(self) -> None:
        """End the sessions that have lost their connection and get no other one."""
        for session in self.sessions() if self._draining else list(self._leaving):
            if not session.connected and not self._has_streams(session):
                session.close(Code.SESSION_LOST, "the connection was lost while the session ended")

    def _begin(self, connection: SessionConnection, hello: Hello) -> None:
        description = PeerDescription(
            local_name=self._settings.node, peer_name=self.server, address=self.server
        )
        session = TunnelSession(
            self._context, Side.AGENT, self._settings.hello(), hello, description
        )
        session.on_closed.append(lambda code, text: self._session_closed(session, code, text))
        session.on_going_away.append(lambda: self._leave(session))
        self._session = session
        self._log.info("{server}: connected", server=self.server)
        connection.start(session, hello)

    def _leave(self, session: TunnelSession) -> None:
        """Begin a new session elsewhere or later, while the old one ends its streams."""
        if session is self._session and not self._draining:
            self._log.info("{server}: the server goes away", server=self.server)
            self._leaving.add(session)
            self._session = None
            self._connection = None
            self._tell_siblings()
            self.retry()

    def _session_closed(self, session: TunnelSession, code: Code, text: str) -> None:
        self._leaving.discard(session)
        current = session is self._session
        if current:
            self._session = None
        if current and self._draining:
            self._come_back_no_more()
        if current and code is Code.REPLACED:
            # By whom shows when the next attempt is due: a sibling may not have its HELLO yet.
            self._replaced_at = session.wire.peer.process
            self._replaced_by_other = True
            self.retries = max(self.retries, REPLACED_RETRIES)
            return
        self._log.info("{server}: session ended: {text}", server=self.server, text=text)
        if current:
            self._tell_siblings()

    def _attempt_failed(self, reason: Failure) -> None:
        if not self.continueTrying:
            return
        self.failed_attempts += 1
        error = problem_with_server(reason)
        # The same message again and again tells nothing.
        if error != self.last_error:
            self._log.warn("{server}: cannot connect: {error}", server=self.server, error=error)
        self.last_error = error
