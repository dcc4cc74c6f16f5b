"""The dialing side: keeps a session with one sibling across successive connections."""

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
from yurttunnel.pki.tls_errors import problem_with_peer
from yurttunnel.server.agents import SERVER_NAME
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.siblings.hello import sibling_hello
from yurttunnel.server.siblings.replicas import Address
from yurttunnel.server.siblings.session import SiblingSession
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.tunnel.tls import SIBLING_ALPN
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello
from yurttunnel.wire.stream_table import Side

FIRST_DELAY = 0.2
"""The longest delay in seconds before the first retry: streams are waiting."""

MAX_DELAY = 3.0
"""The longest delay in seconds, however many attempts have failed."""

UNLIKELY_FAILURES = 5
"""The number of failures to assume for the backoff if the next attempt is unlikely to succeed."""


@dataclass(frozen=True, slots=True)
class SiblingContext:
    """What the clients of one server share.

    ``endpoint(address)`` returns the endpoint of a sibling's port, including TLS. ``on_draining``
    is called with routes to nodes over which nothing new will be opened, ``on_identified`` when an
    address was identified, and ``on_closed`` when a session has ended.
    """

    sessions: SessionContext
    registry: SessionRegistry
    process: bytes
    endpoint: Callable[[Address], IStreamClientEndpoint]
    on_draining: Callable[[frozenset[INodeSession]], object]
    on_identified: Callable[[], object]
    on_closed: Callable[[], object]


class State(enum.Enum):
    """The state of the connection to a sibling."""

    CONNECTING = "connecting"
    """An attempt is in progress, up to the sibling's HELLO."""
    CONNECTED = "connected"
    """A connection carries the session."""
    WAITING = "waiting"
    """The last attempt or connection has ended, and a retry is scheduled."""
    SELF = "ourselves"
    """The addresses are those of this process."""
    ENDED = "ended"
    """No attempt will be made any more; sessions may still finish their streams."""


class SiblingClient:
    """Keeps a session with the sibling ``replica``, whose ``addresses`` it tries in turn.

    The delay before a retry is random between zero and an upper bound that doubles each time ("full
    jitter"); the sibling's HELLO resets it. ``failed_attempts`` counts attempts that ended before
    the HELLO; ``last_error`` is the reason of the last one if it failed.
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
        self._address_index = 0
        self._failures = 0
        self._attempt: Deferred[IProtocol] | None = None
        self._retry_call: IDelayedCall | None = None
        self._connection: SessionConnection | None = None
        self._requested_session = NO_SESSION
        self._current: SiblingSession | None = None
        self._draining: set[SiblingSession] = set()

    # -- for the service -----------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether a connection carries the session now."""
        return self.state is State.CONNECTED

    def sessions(self) -> list[TunnelSession]:
        """Return the session, and those that are finishing their streams."""
        siblings = [*self._draining] if self._current is None else [self._current, *self._draining]
        return [sibling.tunnel for sibling in siblings]

    def start(self) -> None:
        """Connect, and reconnect until the end."""
        self._connect()

    def update(self, addresses: tuple[Address, ...]) -> None:
        """Use ``addresses`` for further attempts; a session continues."""
        if addresses == self._addresses:
            return
        self._addresses = addresses
        if self.state is State.SELF:
            self._connect()
        else:
            self.retry_now()

    def retry_now(self) -> None:
        """Make the scheduled attempt now: the sibling has given a sign of life."""
        if self.state is State.WAITING:
            self._failures = 0
            self._stop_waiting()
            self._connect()

    def drain(self, text: str) -> None:
        """Open nothing new, and let the sessions end with their last stream."""
        self._end_attempts()
        if self._current is not None:
            self._drain(self._current)
        for sibling in list(self._draining):
            sibling.tunnel.drain(text)

    def close(self, code: Code, text: str) -> None:
        """Close the sessions now."""
        self._end_attempts()
        for tunnel in self.sessions():
            tunnel.close(code, text)

    # -- attempts ------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.state = State.CONNECTING
        address = self._addresses[self._address_index % len(self._addresses)]
        factory = Factory.forProtocol(self._build)
        factory.noisy = False
        self._attempt = self._context.endpoint(address).connect(factory)
        _ = self._attempt.addCallbacks(self._attempt_connected, self._attempt_failed)

    def _build(self) -> SessionConnection:
        self._connection = SessionConnection(self._clock, self, alpn=SIBLING_ALPN)
        return self._connection

    def _attempt_connected(self, protocol: IProtocol) -> None:
        """Do nothing: the connection has a timeout for the handshake and the HELLO."""
        self._attempt = None

    def _attempt_failed(self, reason: Failure) -> None:
        self._attempt = None
        if self.state is State.CONNECTING and not reason.check(
            CancelledError, ConnectingCancelledError
        ):
            self._failed(reason)

    def _failed(self, reason: Failure) -> None:
        """Record why there is no connection, and schedule a retry."""
        if isinstance(reason.value, Refused) and reason.value.code is Code.ALREADY_CONNECTED:
            self.state = State.SELF
            self.last_error = None
            self._log.debug("{replica}: is this server itself", replica=self.replica)
            self._context.on_identified()
            return
        self.failed_attempts += 1
        self._address_index += 1
        error = problem_with_peer(reason)
        # A repeated message adds no information.
        if error != self.last_error:
            self._log.warn(
                "sibling {sibling}: cannot connect: {error}", sibling=self.replica, error=error
            )
        self.last_error = error
        self._wait()

    def _wait(self) -> None:
        self.state = State.WAITING
        delay = full_jitter(self._failures, FIRST_DELAY, MAX_DELAY)
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
        if connection is not None and not connection.session_started:
            self._connection = None
            connection.abandon()

    # -- ConnectionOwner -----------------------------------------------------------------------

    def connection_ready(self, connection: SessionConnection) -> None:
        """Request to resume the session, or a new one."""
        current = self._current
        self._requested_session, received = NO_SESSION, 0
        if current is not None:
            self._requested_session, received = (
                current.tunnel.session_id,
                current.tunnel.wire.received,
            )
        connection.send_hello(self._hello(self._requested_session, received))

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Resume, or close a session that the sibling does not know and start a new one."""
        current = self._current
        if current is None and hello.session == self._requested_session:
            raise Violation(Code.SESSION_LOST, "the session has ended while it was resumed")
        self._failures = 0
        self.last_error = None
        self.state = State.CONNECTED
        if current is not None and current.tunnel.session_id == hello.session:
            connection.start(current.tunnel, hello)
            current.resumed()
            self._context.on_identified()
            return
        if current is not None:
            self._current = None
            current.tunnel.close(Code.SESSION_LOST, "the sibling does not know the session")
        self._begin(connection, hello)
        self._context.on_identified()

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Reconnect, unless the connection was that of a session that is ending."""
        for sibling in list(self._draining):
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
        address = join_authority(*self._addresses[self._address_index % len(self._addresses)])
        description = PeerDescription(
            local_name=SERVER_NAME, peer_name=self.replica, address=address
        )
        own = self._hello(NO_SESSION, 0)
        tunnel = TunnelSession(context.sessions, Side.AGENT, own, hello, description)
        sibling = SiblingSession(context.registry, tunnel, context.on_draining)
        tunnel.on_closed.append(lambda code, text: self._session_closed(sibling, code, text))
        tunnel.on_draining.append(lambda: self._drain(sibling))
        self._current = sibling
        self._log.info("sibling {sibling}: connected", sibling=self.replica)
        connection.start(tunnel, hello)
        sibling.request_nodes()

    def _drain(self, sibling: SiblingSession) -> None:
        """Let a session finish its streams; a new one starts when the sibling allows it."""
        if sibling is not self._current:
            return
        self._current = None
        self._connection = None
        self._draining.add(sibling)
        sibling.drain()
        if not sibling.tunnel.connected:
            sibling.tunnel.close(Code.SESSION_LOST, "the connection is lost and the session ends")
        if self.state is State.CONNECTED:
            self._failures = UNLIKELY_FAILURES
            self._wait()

    def _session_closed(self, sibling: SiblingSession, code: Code, text: str) -> None:
        self._draining.discard(sibling)
        if sibling is self._current:
            self._current = None
            if code is Code.PROTOCOL:
                self._failures = UNLIKELY_FAILURES
                self.last_error = text
        sibling.ended()
        self._log.info(
            "sibling {sibling}: session ended: {text} ({code})",
            sibling=self.replica,
            text=text,
            code=code.name,
        )
        self._context.on_closed()

    def _hello(self, session: bytes, received: int) -> Hello:
        return sibling_hello(self._context.process, session, received)
