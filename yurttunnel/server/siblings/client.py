"""The dialing side: holds a session with one sibling, over one connection after another."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IDelayedCall, IProtocol, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.backoff import full_jitter
from yurttunnel.pki.problems import problem_with_peer
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.siblings.replicas import Address
from yurttunnel.server.siblings.session import SiblingSession
from yurttunnel.server.siblings.settings import SiblingSettings
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.tunnel.tls import SIBLING_ALPN
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello
from yurttunnel.wire.stream_table import Side

FIRST_DELAY = 0.2
"""A lost connection is tried again within this many seconds: streams are waiting."""

LONGEST_DELAY = 3.0
"""However often it has failed, the next attempt comes within this many seconds."""

LATER = 5
"""When it is known that the next attempt will hardly do, as if this many had failed."""


@dataclass(frozen=True, slots=True)
class SiblingContext:
    """What the clients of one server share.

    ``endpoint(address)`` leads to a sibling's port, TLS included. ``drains`` is told of ways
    to nodes by which nothing new will be opened, ``found`` is called when it has turned out where
    an address leads, and ``closed`` when a session is over.
    """

    sessions: SessionContext
    registry: SessionRegistry
    process: bytes
    settings: SiblingSettings
    endpoint: Callable[[Address], IStreamClientEndpoint]
    drains: Callable[[frozenset[INodeSession]], object]
    found: Callable[[], object]
    closed: Callable[[], object]


class State(enum.Enum):
    """Where the way to a sibling stands."""

    CONNECTING = "connecting"
    """An attempt is under way, up to the sibling's HELLO."""
    CONNECTED = "connected"
    """A connection carries the session."""
    WAITING = "waiting"
    """The last attempt or connection has come to an end, and another attempt is to come."""
    OURSELVES = "ourselves"
    """The addresses lead to this very process."""
    ENDED = "ended"
    """No attempt will be made any more; sessions may still end their streams."""


class SiblingClient:
    """Holds a session with the sibling ``replica``, whose ``addresses`` it tries in turn.

    The delay before the n-th attempt is chosen evenly between nothing and an upper bound that
    doubles each time ("full jitter"), and is reset by the sibling's HELLO. ``failed_attempts``
    counts those that ended before that; ``last_error`` says why the last one did, if it did.
    """

    _log = Logger()

    def __init__(
        self, context: SiblingContext, replica: str, addresses: tuple[Address, ...]
    ) -> None:
        self.replica = replica
        self.state = State.CONNECTING
        self.failed_attempts = 0
        self.last_error: str | None = None
        self._context = context
        self._clock = context.sessions.clock
        self._addresses = addresses
        self._turn = 0
        self._failures = 0
        self._attempt: Deferred[IProtocol] | None = None
        self._retry_call: IDelayedCall | None = None
        self._connection: SessionConnection | None = None
        self._asked = NO_SESSION
        self._current: SiblingSession | None = None
        self._leaving: set[SiblingSession] = set()

    # -- for the service -----------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether a connection carries the session now."""
        return self.state is State.CONNECTED

    def sessions(self) -> list[TunnelSession]:
        """Return the session, and those that still end their streams."""
        siblings = [*self._leaving] if self._current is None else [self._current, *self._leaving]
        return [sibling.tunnel for sibling in siblings]

    def start(self) -> None:
        """Connect, and come back until the end."""
        self._connect()

    def update(self, addresses: tuple[Address, ...]) -> None:
        """Try ``addresses`` from now on; a session goes on."""
        if addresses == self._addresses:
            return
        self._addresses = addresses
        if self.state is State.OURSELVES:
            self._connect()
        else:
            self.try_soon()

    def try_soon(self) -> None:
        """Make the next attempt now, if one is due: the sibling has just been heard of."""
        if self.state is State.WAITING:
            self._failures = 0
            self._stop_waiting()
            self._connect()

    def leave(self, text: str) -> None:
        """Open nothing any more, and let the sessions end with their last stream."""
        self._end_attempts()
        if self._current is not None:
            self._leave(self._current)
        for sibling in list(self._leaving):
            sibling.tunnel.go_away(text)

    def close(self, code: Code, text: str) -> None:
        """End the sessions now."""
        self._end_attempts()
        for tunnel in self.sessions():
            tunnel.close(code, text)

    # -- attempts ------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.state = State.CONNECTING
        address = self._addresses[self._turn % len(self._addresses)]
        factory = Factory.forProtocol(self._build)
        factory.noisy = False
        self._attempt = self._context.endpoint(address).connect(factory)
        _ = self._attempt.addCallbacks(self._attempt_connected, self._attempt_failed)

    def _build(self) -> SessionConnection:
        self._connection = SessionConnection(self._clock, self, alpn=SIBLING_ALPN)
        return self._connection

    def _attempt_connected(self, protocol: IProtocol) -> None:
        """Wait for the handshake and the HELLO, for which the connection has a deadline."""
        self._attempt = None

    def _attempt_failed(self, reason: Failure) -> None:
        self._attempt = None
        if self.state is State.CONNECTING and not reason.check(
            CancelledError, ConnectingCancelledError
        ):
            self._failed(reason)

    def _failed(self, reason: Failure) -> None:
        """Note why there is no connection, and try again."""
        if isinstance(reason.value, Refused) and reason.value.code is Code.ALREADY_CONNECTED:
            self.state = State.OURSELVES
            self.last_error = None
            self._log.debug("{replica}: is this server itself", replica=self.replica)
            self._context.found()
            return
        self.failed_attempts += 1
        self._turn += 1
        error = problem_with_peer(reason)
        # The same message again and again tells nothing.
        if error != self.last_error:
            self._log.warn(
                "sibling {sibling}: cannot connect: {error}", sibling=self.replica, error=error
            )
        self.last_error = error
        self._wait()

    def _wait(self) -> None:
        self.state = State.WAITING
        delay = full_jitter(self._failures, FIRST_DELAY, LONGEST_DELAY)
        self._failures += 1
        self._retry_call = self._clock.callLater(delay, self._retry)

    def _retry(self) -> None:
        self._retry_call = None
        self._connect()

    def _stop_waiting(self) -> None:
        call, self._retry_call = self._retry_call, None
        if call is not None:
            call.cancel()

    def _end_attempts(self) -> None:
        self.state = State.ENDED
        self._stop_waiting()
        if self._attempt is not None:
            self._attempt.cancel()
        connection = self._connection
        if connection is not None and not connection.greeted:
            self._connection = None
            connection.abandon()

    # -- ConnectionOwner -----------------------------------------------------------------------

    def connection_ready(self, connection: SessionConnection) -> None:
        """Ask for the session to go on, or for a new one."""
        current = self._current
        self._asked, received = NO_SESSION, 0
        if current is not None:
            self._asked, received = current.tunnel.session_id, current.tunnel.wire.received
        connection.send_hello(self._hello(self._asked, received))

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Go on, or end what the sibling does not know and begin anew."""
        current = self._current
        if current is None and hello.session == self._asked:
            raise Violation(Code.SESSION_LOST, "the session has ended while it was resumed")
        self._failures = 0
        self.last_error = None
        self.state = State.CONNECTED
        if current is not None and current.tunnel.session_id == hello.session:
            connection.start(current.tunnel, hello)
            current.resumed()
            self._context.found()
            return
        if current is not None:
            self._current = None
            current.tunnel.close(Code.SESSION_LOST, "the sibling does not know the session")
        self._begin(connection, hello)
        self._context.found()

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Come back, unless the connection was that of a session that is being left."""
        for sibling in list(self._leaving):
            if not sibling.tunnel.connected:
                text = "the connection was lost while the session ended"
                sibling.tunnel.close(Code.SESSION_LOST, text)
        if connection is not self._connection:
            return
        self._connection = None
        if self._current is not None:
            self._current.connection_lost()
        if self.state is State.CONNECTED:
            self._log.info(
                "sibling {sibling}: connection lost: {reason}",
                sibling=self.replica,
                reason=reason.getErrorMessage(),
            )
            self._wait()
        elif self.state is State.CONNECTING:
            self._failed(reason)

    # -- sessions ------------------------------------------------------------------------------

    def _begin(self, connection: SessionConnection, hello: Hello) -> None:
        context = self._context
        address = join_authority(*self._addresses[self._turn % len(self._addresses)])
        description = PeerDescription(
            local_name=context.settings.name, peer_name=self.replica, address=address
        )
        own = self._hello(NO_SESSION, 0)
        tunnel = TunnelSession(context.sessions, Side.AGENT, own, hello, description)
        sibling = SiblingSession(context.registry, tunnel, context.drains)
        tunnel.on_closed.append(lambda code, text: self._session_closed(sibling, code, text))
        tunnel.on_going_away.append(lambda: self._leave(sibling))
        self._current = sibling
        self._log.info("sibling {sibling}: connected", sibling=self.replica)
        connection.start(tunnel, hello)
        sibling.ask_for_nodes()

    def _leave(self, sibling: SiblingSession) -> None:
        """Let a session end its streams; the next one begins when the sibling allows it."""
        if sibling is not self._current:
            return
        self._current = None
        self._connection = None
        self._leaving.add(sibling)
        sibling.leave()
        if not sibling.tunnel.connected:
            sibling.tunnel.close(Code.SESSION_LOST, "the connection is lost and the session ends")
        if self.state is State.CONNECTED:
            self._failures = LATER
            self._wait()

    def _session_closed(self, sibling: SiblingSession, code: Code, text: str) -> None:
        self._leaving.discard(sibling)
        if sibling is self._current:
            self._current = None
            if code is Code.PROTOCOL:
                self._failures = LATER
                self.last_error = text
        sibling.ended()
        self._log.info(
            "sibling {sibling}: session ended: {text} ({code})",
            sibling=self.replica,
            text=text,
            code=code.name,
        )
        self._context.closed()

    def _hello(self, session: bytes, received: int) -> Hello:
        return self._context.settings.hello(self._context.process, session, received)
