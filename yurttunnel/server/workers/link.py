"""The session between a worker and the first process, and the connection that carries it.

By it goes what cannot be passed on as a socket: callers over TLS, forwards, requests to kubelets.
The streams mean the same as those between servers (:mod:`yurttunnel.server.siblings`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.interfaces import IHalfCloseableTransport
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Hello, Limits
from yurttunnel.wire.stream_table import Side

_LINK_LIMITS = Limits(
    # All nodes of a worker share one session here, and the way is short.
    max_streams=10_000,
    session_window=256 * 1024 * 1024,
    # There is no network that could fall silent. The end of a process is seen at once, and one
    # that has hung is known by its reports. An hour, which no HELLO could say.
    ping_interval=3_600_000,
)


def link_session(context: SessionContext, side: Side, number: int) -> TunnelSession:
    """Make one end of the session between a worker and the first process, which is the agent's.

    Both know what the other would say in its HELLO, so none is sent.
    """
    first = Hello(limits=_LINK_LIMITS, session=bytes(16), process=bytes(16), received=0)
    worker = Hello(
        limits=_LINK_LIMITS,
        session=number.to_bytes(16),
        process=number.to_bytes(16),
        received=0,
    )
    names = ("server", f"worker {number}")
    local, peer = (first, worker) if side is Side.AGENT else (worker, first)
    local_name, peer_name = names if side is Side.AGENT else names[::-1]
    description = PeerDescription(local_name, peer_name, "this machine")
    return TunnelSession(context, side, local, peer, description, return_grace=0.0)


class Link:
    """The session as one that a worker has to drain."""

    def __init__(self, session: TunnelSession) -> None:
        self._session = session

    def sessions(self) -> list[TunnelSession]:
        """Return it, until it is over."""
        return [] if self._session.closed else [self._session]

    def drain(self, text: str) -> None:
        """Let it end with its last stream."""
        self._session.go_away(text)

    def close_sessions(self, code: Code, text: str) -> None:
        """End it now."""
        self._session.close(code, text)


class LinkConnection(Protocol):
    """Carries ``session`` as it is, for nobody else can read it: no TLS, and no second connection.

    When it ends before the session does, ``lost`` is called: the other process has gone.
    """

    transport: IHalfCloseableTransport

    def __init__(self, session: TunnelSession, lost: Callable[[], object]) -> None:
        self._session: TunnelSession | None = session
        self._lost = lost

    def connectionMade(self) -> None:
        """Begin."""
        assert self._session is not None  # nobody can have ended it yet
        # Found once, so that each read is one call into the session.
        self.dataReceived = self._session.data_received  # type: ignore[method-assign] # see above
        self._session.carry(self, 0)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the session and the owner."""
        session, self._session = self._session, None
        if session is not None:
            session.connection_lost(told=True)
            self._lost()

    # -- Carrier -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send ``data``."""
        self.transport.write(data)

    def register_producer(self, producer: IPushProducer) -> None:
        """Pause ``producer`` while the other process has enough to read."""
        self.transport.registerProducer(producer, True)

    def end(self) -> None:
        """Close after what has been written."""
        self._session = None
        self.dataReceived = self._ignore  # type: ignore[method-assign] # nobody reads it
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abandon(self) -> None:
        """Abort."""
        self._session = None
        self.transport.abortConnection()

    def _ignore(self, data: bytes) -> None:
        """Drop what comes after the end."""


def carry_link(
    reactor: DirectReactor,
    connection: socket.socket,
    session: TunnelSession,
    lost: Callable[[], object],
) -> None:
    """Have ``connection``, one of a pair of sockets, carry ``session``; see the class."""
    reactor.adopt(connection, lambda _: LinkConnection(session, lost))
