"""The agent's side of the sessions: one client for each server, which always comes back."""

# mypy: disallow-untyped-calls=False
# ReconnectingClientFactory has no annotations.

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

from twisted.internet.interfaces import IAddress, IConnector, IStreamClientEndpoint
from twisted.internet.protocol import ReconnectingClientFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.agent.connector import EndpointConnector
from yurttunnel.pki.problems import problem_with_server
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.wire.codes import Code
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


class ServerClient(ReconnectingClientFactory):
    """Holds a session with one server, over one connection after another.

    The delay before the n-th attempt is chosen evenly between nothing and an upper bound that
    doubles each time ("full jitter"), so that many agents do not return at the same moment. It
    is reset by the server's HELLO, not by the connection: under TLS 1.3 a client whose
    certificate is refused has been connected all the same.

    When the server goes away its session is left to end its streams on the old connection while
    a new session begins on a new one.

    ``endpoint`` leads to the server's port, TLS included. ``failed_attempts`` counts those that
    ended before the server's HELLO, ``last_error`` says why the last one did, if it did.
    """

    _log = Logger()
    noisy = False
    # The parent's jitter varies the delay by a tenth; retry() below does more.
    jitter = 0.0

    def __init__(
        self,
        context: SessionContext,
        server: str,
        endpoint: IStreamClientEndpoint,
        settings: ClientSettings,
    ) -> None:
        self.clock = context.clock  # type: ignore[assignment] # the parent wants a whole reactor
        self.server = server
        self.failed_attempts = 0
        self.last_error: str | None = "not connected yet"
        self.connector = self._connector = EndpointConnector(endpoint, self)
        self._context = context
        self._settings = settings
        self._session: TunnelSession | None = None
        self._leaving: set[TunnelSession] = set()
        self._connection: SessionConnection | None = None

    # -- for the command -----------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and come back for ever."""
        self._connector.connect()

    def drain(self, text: str) -> None:
        """Let the sessions end with their last stream, and come back no more."""
        self.stopTrying()
        for session in self.sessions():
            if session.connected:
                session.go_away(text)
            else:
                session.close(Code.GOING_AWAY, text)
        self._abandon_attempt()

    def close(self, code: Code, text: str) -> None:
        """End the sessions now, and come back no more."""
        self.stopTrying()
        for session in self.sessions():
            session.close(code, text)
        self._abandon_attempt()

    def sessions(self) -> list[TunnelSession]:
        """Give the session, and those of the same server that still end their streams."""
        current = [] if self._session is None else [self._session]
        return [*current, *self._leaving]

    @property
    def connected(self) -> bool:
        """Whether a connection carries the session now."""
        return self._session is not None and self._session.connected

    # -- ReconnectingClientFactory -------------------------------------------------------------

    def retry(self, connector: IConnector | None = None) -> None:
        """Connect again after a while."""
        longest = min(FIRST_DELAY * 2 ** min(self.retries, 16), LONGEST_DELAY)
        self.delay = random.uniform(0, longest)
        super().retry(connector)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Note why, and try again."""
        self._attempt_failed(reason)
        super().clientConnectionFailed(connector, reason)

    def buildProtocol(self, addr: IAddress | None) -> SessionConnection:
        """Make the protocol of one connection, above TLS."""
        self._connection = SessionConnection(self._context.clock, self)
        return self._connection

    # -- ConnectionOwner -----------------------------------------------------------------------

    def connection_ready(self, connection: SessionConnection) -> None:
        """Ask for the session to go on, or for a new one."""
        session = self._session
        hello = self._hello()
        if session is not None:
            hello = replace(hello, session=session.session_id, received=session.wire.received)
        connection.send_hello(hello)

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Go on, or end what the server does not know and begin anew."""
        self.resetDelay()
        self.last_error = None
        session = self._session
        if session is not None and session.session_id == hello.session:
            self._log.info("{server}: back, the session goes on", server=self.server)
            connection.start(session, hello)
            return
        if session is not None:
            session.close(Code.SESSION_LOST, "the server does not know the session any more")
        self._begin(connection, hello)

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Come back, unless the connection was that of a session that is being left."""
        self._close_abandoned()
        if connection is not self._connection:
            return
        self._connection = None
        if connection.greeted:
            self.last_error = reason.getErrorMessage()
            self._log.info(
                "{server}: connection lost: {reason}", server=self.server, reason=self.last_error
            )
        else:
            self._attempt_failed(reason)
        self.clientConnectionLost(self._connector, reason)

    # -- helpers -------------------------------------------------------------------------------

    def _abandon_attempt(self) -> None:
        """Abort a connection before its HELLO; after it the session ends it, with a CLOSE."""
        if self._connection is not None and not self._connection.greeted:
            self._connection.abandon()

    def _close_abandoned(self) -> None:
        """End the sessions that have lost their connection and get no other one."""
        for session in list(self._leaving) if self.continueTrying else self.sessions():
            if not session.connected:
                session.close(Code.SESSION_LOST, "the connection was lost while the session ended")

    def _hello(self) -> Hello:
        return Hello(
            limits=self._settings.limits,
            session=NO_SESSION,
            process=self._settings.process,
            properties={
                "software": self._settings.software,
                "identifiers": self._settings.identifiers,
            },
        )

    def _begin(self, connection: SessionConnection, hello: Hello) -> None:
        description = PeerDescription(
            local_name=self._settings.node, peer_name=self.server, address=self.server
        )
        session = TunnelSession(self._context, Side.AGENT, self._hello(), hello, description)
        session.on_closed.append(lambda code, text: self._session_closed(session, code, text))
        session.on_going_away.append(lambda: self._leave(session))
        self._session = session
        self._log.info("{server}: connected", server=self.server)
        connection.start(session, hello)

    def _leave(self, session: TunnelSession) -> None:
        """Begin a new session elsewhere or later, while the old one ends its streams."""
        if session is self._session and self.continueTrying:
            self._log.info("{server}: the server goes away", server=self.server)
            self._leaving.add(session)
            self._session = None
            self._connection = None
            self.retry()

    def _session_closed(self, session: TunnelSession, code: Code, text: str) -> None:
        self._leaving.discard(session)
        if session is self._session:
            self._session = None
        if code is Code.REPLACED:
            # Somebody else is this node now; two that replace each other help nobody.
            self.retries = max(self.retries, REPLACED_RETRIES)
            self._log.warn(
                "{server}: another agent has connected as node {node}; is it running twice?",
                server=self.server,
                node=self._settings.node,
            )
        else:
            self._log.info("{server}: session ended: {text}", server=self.server, text=text)

    def _attempt_failed(self, reason: Failure) -> None:
        if not self.continueTrying:
            return
        self.failed_attempts += 1
        error = problem_with_server(reason)
        # The same message again and again tells nothing.
        if error != self.last_error:
            self._log.warn("{server}: cannot connect: {error}", server=self.server, error=error)
        self.last_error = error
