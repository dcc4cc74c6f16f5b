"""The HTTP/1.1 server: the limits and the shared state of a listener's connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import ServerFactory
from twisted.python.failure import Failure

from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.evicting_set import EvictingSet
from yurttunnel.http.head import HeadLimits, RequestHead
from yurttunnel.http.interfaces import IRequestHandler
from yurttunnel.http.server_connection import ServerConnection
from yurttunnel.http.shared_limit import SharedLimit


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The limits and timeouts of the connections of one listener; all times are in seconds."""

    limits: HeadLimits = field(default_factory=HeadLimits)
    head_timeout: float = 10.0
    """The time for a request head, from its first byte; for the first head of a connection from
    the start of the connection, TLS handshake included."""
    idle_timeout: float = 75.0
    """The time between a response and the next request; also the time for a client to receive the
    rest of its last response."""
    body_timeout: float = 20.0
    """The time for each ``min_body_bytes`` of a request body that is being read."""
    min_body_bytes: int = 10_000
    """With ``body_timeout``, 500 bytes a second: ``RequestReadTimeout body=20,MinRate=500``, the
    default of Apache's mod_reqtimeout, which allows as long for the first byte."""
    half_closed_timeout: float = 10.0
    """The time for the response to a client that has ended its sending direction."""
    linger: float = 5.0
    """The time for a client to close after its last response; then the connection is aborted."""
    max_connections: int = 4096
    """The number of connections, without those that are closing or in their TLS handshake. Above
    it, the one that has waited longest for a request is closed, if there is one."""
    max_unread_heads: int = 4096
    """The number of these without a complete head, before their first request or a later one."""
    max_long_heads: int = 32 * 1024 * 1024
    """The total bytes of heads longer than :data:`LONG_HEAD`, from when they exceed it until their
    requests end. A caller may use as many as remain free."""
    max_handshakes: int = 1024
    """The number of concurrent TLS handshakes."""
    single_request: bool = False
    """Whether a connection serves only one request. A client that sends none in time gets an error
    response, too. One that has sent nothing when the server stops, or that does not close, is
    reset."""

    @property
    def max_lingering(self) -> int:
        """The number of connections that may wait for the client to close."""
        return min(self.max_connections, self.max_unread_heads)


def _host_of(transport: Any) -> Hashable:
    """Return the address of the client; all clients of a Unix socket have the same."""
    return getattr(transport.getPeer(), "host", "")


class ConnectionsFactory(ServerFactory):
    """The shared state of the connections of one listener, which subclasses create.

    ``clock`` drives all timeouts. The owner of the listener calls :meth:`close` at the end.

    ``refusals`` counts, by status, requests that were rejected without reaching a handler: invalid
    or late heads, and connections or long heads above their limits (503). ``on_full`` is called
    each time that a limit of connections, unread heads or handshakes rejects or evicts a
    connection. ``caller_of`` returns the caller of a transport, whose share a long head is charged
    to.
    """

    noisy = False
    on_full: Callable[[], object] | None = None
    caller_of: Callable[[Any], Hashable] = staticmethod(_host_of)

    def __init__(self, clock: IReactorTime, settings: ServerSettings) -> None:
        self.clock = clock
        self.settings = settings
        self.connections: set[ServerConnection] = set()
        """The connections that count: after the TLS handshake, if any, and not yet closing."""
        self.handshakes: EvictingSet[ServerConnection] = EvictingSet(
            settings.max_handshakes, self._cut_off
        )
        self.closing: EvictingSet[ServerConnection] = EvictingSet(
            settings.max_lingering, ServerConnection.cut_off
        )
        """The connections that have got their last response."""
        self.long_heads = SharedLimit(settings.max_long_heads)
        """The bytes of long heads."""
        self.refusals: Counter[int] = Counter()
        self.draining = False
        connection = ServerConnection
        self.heads = Deadlines(clock, settings.head_timeout, connection.head_overdue)
        self.idle = Deadlines(clock, settings.idle_timeout, connection.idle_too_long)
        self.bodies = Deadlines(clock, settings.body_timeout, connection.body_overdue)
        self.half_closed = Deadlines(
            clock, settings.half_closed_timeout, connection.response_overdue
        )
        self.unread = Deadlines(clock, settings.half_closed_timeout, connection.check_for_end)
        self.lingering = Deadlines(clock, settings.linger, connection.linger_over)
        self.stalled = Deadlines(clock, settings.idle_timeout, connection.abort)
        self._drain_waiters: list[Deferred[None]] = []

    def drain(self) -> Deferred[None]:
        """Close idle connections now, and the others after their current response.

        Returns a ``Deferred`` that fires when none is left; :meth:`close` forces that.
        """
        self.draining = True
        drained: Deferred[None] = Deferred()
        self._drain_waiters.append(drained)
        for connection in self._all:
            connection.drain()
        self._notify_when_drained()
        return drained

    def close(self) -> None:
        """Abort every connection and stop the timers."""
        self.draining = True
        for connection in self._all:
            connection.abort()
        deadlines: tuple[Deadlines[ServerConnection], ...] = (
            self.heads,
            self.idle,
            self.bodies,
            self.half_closed,
            self.unread,
            self.lingering,
            self.stalled,
        )
        for each in deadlines:
            each.stop()

    def report_full(self) -> None:
        """Report that a limit rejects or evicts a connection."""
        if self.on_full is not None:
            self.on_full()

    def refused(
        self, connection: ServerConnection, status: int, text: str, head: RequestHead | None
    ) -> None:
        """Count a request that is rejected without reaching the handler."""
        self.refusals[status] += 1

    def handshake_failed(self, connection: ServerConnection, reason: Failure) -> None:
        """Handle a connection that has ended during its TLS handshake; for subclasses."""

    def handshake_overdue(self, connection: ServerConnection) -> None:
        """Handle a connection whose TLS handshake has timed out; for subclasses."""

    def evicted(self, connection: ServerConnection) -> None:
        """Handle the eviction of a connection in its handshake or waiting; for subclasses."""

    def make_room(self, newest: ServerConnection, *waiting: Deadlines[ServerConnection]) -> bool:
        """Evict the connection ``waiting`` longest, except ``newest``; return whether it exists."""

        def eligible(connection: ServerConnection) -> bool:
            return connection.handshaken and connection is not newest

        oldest = [each for state in waiting if (each := state.oldest(eligible)) is not None]
        if not oldest:
            return False
        _, connection = min(oldest, key=itemgetter(0))
        self.connections.discard(connection)
        self._cut_off(connection)
        return True

    def _cut_off(self, connection: ServerConnection) -> None:
        self.report_full()
        self.evicted(connection)
        connection.cut_off()

    def begin_closing(self, connection: ServerConnection) -> None:
        """Move a connection that has got its last response to :attr:`closing`."""
        if connection.handshaken:
            self.connections.discard(connection)
            self.closing.add(connection)

    def forget(self, connection: ServerConnection) -> None:
        """Forget a connection that has ended."""
        if connection in self.connections:
            self.connections.discard(connection)
        elif connection.handshaken:
            self.closing.discard(connection)
        else:
            self.handshakes.discard(connection)
        if self._drain_waiters:
            self._notify_when_drained()

    @property
    def _all(self) -> list[ServerConnection]:
        return [*self.connections, *self.handshakes, *self.closing]

    def _notify_when_drained(self) -> None:
        if not (self.connections or self.handshakes or self.closing):
            waiting, self._drain_waiters = self._drain_waiters, []
            for drained in waiting:
                drained.callback(None)


class HTTPFactory(ConnectionsFactory):
    """Serves HTTP/1.1 on any transport; ``handler`` handles every request."""

    def __init__(
        self, clock: IReactorTime, handler: IRequestHandler, settings: ServerSettings | None = None
    ) -> None:
        super().__init__(clock, settings or ServerSettings())
        self._handler = handler

    def buildProtocol(self, addr: IAddress | None) -> ServerConnection:
        return ServerConnection(self, self._handler)
