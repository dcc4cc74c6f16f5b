"""The side of HTTP/1.1 that serves: what a listener's connections may take, and what they share."""

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
from yurttunnel.http.places import Places
from yurttunnel.http.server_connection import ServerConnection


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the connections of one listener may take; all times are in seconds."""

    limits: HeadLimits = field(default_factory=HeadLimits)
    head_timeout: float = 10.0
    """For a head from its first byte, and for the first head from the connection, a TLS handshake
    included."""
    idle_timeout: float = 75.0
    """Between a response and the next request; also for taking the rest of a last response."""
    body_timeout: float = 20.0
    """For each ``min_body_bytes`` of a request's body that is waited for."""
    min_body_bytes: int = 10_000
    """With ``body_timeout`` 500 bytes a second, as ``RequestReadTimeout body=20,MinRate=500``, the
    default of Apache's mod_reqtimeout, which gives as long to begin."""
    half_closed_timeout: float = 10.0
    """For the answer to a client that has ended its direction."""
    linger: float = 5.0
    """For a client to close after its last response, before its connection is aborted."""
    max_connections: int = 4096
    """Those that are not being closed; over TLS they are through the handshake. Beyond that the one
    that has waited longest for a request makes room, if there is one."""
    max_unread_heads: int = 4096
    """Those of them that may be without a complete head, before their first request or later."""
    max_long_heads: int = 32 * 1024 * 1024
    """Bytes of the heads that have more than :data:`LONG_HEAD`, from when they have them until
    their requests are over. A caller has as many as it leaves free."""
    max_handshakes: int = 1024
    """TLS handshakes at once."""
    single_request: bool = False
    """A connection has one request only. A client that sends none in time is answered, too; one
    from which nothing has come when the server stops, or that does not close, is reset."""

    @property
    def max_lingering(self) -> int:
        """How many may be waited for to close after their last answer."""
        return min(self.max_connections, self.max_unread_heads)


def _host_of(transport: Any) -> Hashable:
    """Return the address at the other end; all at a Unix socket are one."""
    return getattr(transport.getPeer(), "host", "")


class ConnectionsFactory(ServerFactory):
    """What the connections of one listener share; subclasses make them.

    ``clock`` times everything out. Whoever listens with it calls :meth:`close` in the end.

    ``refusals`` counts, by status, what was refused without a word to a handler: bad or late
    heads, connections beyond the bound and long heads beyond theirs (503). ``on_full`` is called
    each time that a bound on connections, unread heads or handshakes turns somebody away, or has
    the oldest make room. ``caller_of`` gives whose share a long head has by its transport.
    """

    noisy = False
    on_full: Callable[[], object] | None = None
    caller_of: Callable[[Any], Hashable] = staticmethod(_host_of)

    def __init__(self, clock: IReactorTime, settings: ServerSettings) -> None:
        self.clock = clock
        self.settings = settings
        self.connections: set[ServerConnection] = set()
        """Those that count: over TLS after the handshake, and before they are being closed."""
        self.handshakes: EvictingSet[ServerConnection] = EvictingSet(
            settings.max_handshakes, self._cut_off
        )
        self.closing: EvictingSet[ServerConnection] = EvictingSet(
            settings.max_lingering, ServerConnection.cut_off
        )
        """Those that have their last answer."""
        self.long_heads = Places(settings.max_long_heads)
        """Their bytes."""
        self.refusals: Counter[int] = Counter()
        self.draining = False
        connection = ServerConnection
        self.heads = Deadlines(clock, settings.head_timeout, connection.head_overdue)
        self.idle = Deadlines(clock, settings.idle_timeout, connection.idle_too_long)
        self.bodies = Deadlines(clock, settings.body_timeout, connection.body_overdue)
        self.half_closed = Deadlines(clock, settings.half_closed_timeout, connection.answer_overdue)
        self.unread = Deadlines(clock, settings.half_closed_timeout, connection.look_for_end)
        self.lingering = Deadlines(clock, settings.linger, connection.linger_over)
        self.stalled = Deadlines(clock, settings.idle_timeout, connection.abort)
        self._all_gone: list[Deferred[None]] = []

    def drain(self) -> Deferred[None]:
        """Close idle connections now, and the others after the response they are at.

        Returns a ``Deferred`` that fires when none is left; :meth:`close` makes that happen.
        """
        self.draining = True
        gone: Deferred[None] = Deferred()
        self._all_gone.append(gone)
        for connection in self._all:
            connection.drain()
        self._tell_when_gone()
        return gone

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

    def tell_full(self) -> None:
        """Report that a bound turns somebody away, or has the oldest make room."""
        if self.on_full is not None:
            self.on_full()

    def refused(
        self, connection: ServerConnection, status: int, text: str, head: RequestHead | None
    ) -> None:
        """Count what is refused without a word to the handler."""
        self.refusals[status] += 1

    def handshake_failed(self, connection: ServerConnection, reason: Failure) -> None:
        """See a connection end that has not got through its TLS handshake; for subclasses."""

    def handshake_overdue(self, connection: ServerConnection) -> None:
        """See a connection whose TLS handshake has taken too long; for subclasses."""

    def evicted(self, connection: ServerConnection) -> None:
        """See a connection make room that is in its TLS handshake or waits; for subclasses."""

    def make_room(self, newest: ServerConnection, *waiting: Deadlines[ServerConnection]) -> bool:
        """Close who waits longest of those ``waiting`` but ``newest``, if there is anybody."""

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
        self.tell_full()
        self.evicted(connection)
        connection.cut_off()

    def closes(self, connection: ServerConnection) -> None:
        """Have a connection that has its last answer count apart."""
        if connection.handshaken:
            self.connections.discard(connection)
            self.closing.begin(connection)

    def forget(self, connection: ServerConnection) -> None:
        """Let go of a connection that has ended."""
        if connection in self.connections:
            self.connections.discard(connection)
        elif connection.handshaken:
            self.closing.end(connection)
        else:
            self.handshakes.end(connection)
        if self._all_gone:
            self._tell_when_gone()

    @property
    def _all(self) -> list[ServerConnection]:
        return [*self.connections, *self.handshakes, *self.closing]

    def _tell_when_gone(self) -> None:
        if not (self.connections or self.handshakes or self.closing):
            waiting, self._all_gone = self._all_gone, []
            for gone in waiting:
                gone.callback(None)


class HTTPFactory(ConnectionsFactory):
    """Serves HTTP/1.1 on any transport; ``handler`` is given every request."""

    def __init__(
        self,
        clock: IReactorTime,
        handler: IRequestHandler,
        settings: ServerSettings | None = None,
    ) -> None:
        super().__init__(clock, settings or ServerSettings())
        self._handler = handler

    def buildProtocol(self, addr: IAddress | None) -> ServerConnection:
        """Make the protocol of one client."""
        return ServerConnection(self, self._handler)
