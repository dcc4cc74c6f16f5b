"""A node's session with this server, as the registry holds it, and what it is chosen for."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from yurttunnel.pki.identity import Identifiers, NodeIdentity, parse_identifiers, uncovered
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.shares import OTHER, Holder
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello

_ELSEWHERE = frozenset({Code.GOING_AWAY, Code.SESSION_LOST, Code.REPLACED})
"""What a dial ends with that has not come to the node: another way may lead there."""

RETURN_PATIENCE = 5.0
"""Seconds for which dials wait for an agent that has lost its connection.

An agent that can reach the server is back after its next attempt. The first four come within 0.3,
0.6, 1.2 and 2.4 s of each other at the most (:mod:`yurttunnel.agent.company`), together 4.5 s;
the rest is for the last one's handshakes. Who is not back by then is cut off: its streams go on
waiting, but nobody else need wait to be told so."""


@implementer(INodeSession)
class NodeSession:
    """The session that this server has with a node's agent; ``registry`` knows other ways to it.

    While no connection carries it dials wait, each for :data:`RETURN_PATIENCE` after the loss at
    most; later ones fail at once.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        identifiers: Identifiers,
        tunnel: TunnelSession,
        registry: SessionRegistry,
    ) -> None:
        self._registry = registry
        self._dials: set[Deferred[IStream]] = set()
        # When the connection was lost, while there is none.
        self._lost_at: float | None = None
        self._patience: IDelayedCall | None = None
        self.node = identity.node
        self.identity = identity
        self.identifiers = identifiers
        self.tunnel = tunnel
        tunnel.on_closed.append(lambda code, text: self._wait_no_more())

    @property
    def draining(self) -> bool:
        """Whether one of the ends wants no new streams that have another way."""
        return self.tunnel.going_away

    @property
    def connected(self) -> bool:
        """Whether a connection carries it; one that has none waits for the agent to be back."""
        return self.tunnel.connected

    def open_stream(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Open a stream to a target at the node, by another way if this one is lost."""
        opening = open_by_two_ways(
            self._registry, self.tunnel.clock, self, host, port, timeout, request_id, holder
        )
        return Deferred.fromCoroutine(opening)

    def open_here(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Open a stream to a target at the node in this session."""
        return Deferred.fromCoroutine(self._open_here(host, port, timeout, request_id, holder))

    def connection_lost(self) -> None:
        """Have dials that wait go another way, now if there is one, or soon end."""
        # Of two connections that the session has had the ends may be told one after the other.
        self._wait_no_more()
        clock = self.tunnel.clock
        self._lost_at = clock.seconds()
        self._patience = clock.callLater(RETURN_PATIENCE, self._end_dials)
        another = self._registry.find_another(self)
        if another is not None and another.connected and not another.draining:
            self._end_dials()

    def resumed(self) -> None:
        """Let dials wait for their answers again: a connection carries the session."""
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        self._lost_at = None
        patience, self._patience = self._patience, None
        if patience is not None and patience.active():
            patience.cancel()

    def _end_dials(self) -> None:
        dials, self._dials = self._dials, set()
        for dial in dials:
            dial.cancel()

    def _away(self) -> float:
        """Give for how many seconds no connection has carried the session."""
        return 0.0 if self._lost_at is None else self.tunnel.clock.seconds() - self._lost_at

    def _missing(self) -> StreamFailed:
        text = (
            f"the connection to the agent of node {self.node} was lost {self._away():.0f} s ago,"
            " and it has not come back yet"
        )
        return StreamFailed(Code.SESSION_LOST, text)

    async def _open_here(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder
    ) -> IStream:
        if self._away() >= RETURN_PATIENCE:
            self.tunnel.dial_answered(Code.SESSION_LOST)
            raise self._missing()
        dial = self.tunnel.open_stream(host, port, timeout, request_id, holder)
        self._dials.add(dial)
        try:
            return await dial
        except StreamFailed as error:
            if error.code is Code.CANCELLED and dial not in self._dials:
                raise self._missing() from error
            raise
        finally:
            self._dials.discard(dial)

    def snapshot(self) -> SessionSnapshot:
        """Describe the session at this moment."""
        return self.tunnel.snapshot()


async def open_by_two_ways(
    registry: SessionRegistry,
    clock: IReactorTime,
    session: INodeSession,
    host: str,
    port: int,
    timeout: float,
    request_id: str,
    holder: Holder,
) -> IStream:
    """Open a stream by ``session``, or, if that is lost before, by another way to its node.

    All is done within ``timeout`` seconds. Raises :class:`StreamFailed`.
    """
    began = clock.seconds()
    try:
        return await session.open_here(host, port, timeout, request_id, holder)
    except StreamFailed as error:
        if error.code not in _ELSEWHERE:
            raise
        other = registry.find_another(session)
        left = timeout - (clock.seconds() - began)
        if other is None or left <= 0:
            raise
    return await other.open_here(host, port, left, request_id, holder)


def granted_identifiers(identity: NodeIdentity, hello: Hello) -> Identifiers:
    """Give what a node is chosen for: what its HELLO claims, or all that its certificate covers.

    Raises :class:`Violation` for a claim that the certificate does not cover.
    """
    claimed = hello.properties.get("identifiers")
    if not claimed:
        return identity.identifiers
    try:
        identifiers = parse_identifiers(claimed)
    except ValueError as error:
        raise Violation(Code.PROTOCOL, f"node {identity.node}: {error}") from error
    missing = uncovered(identity, identifiers)
    if missing:
        raise Violation(
            Code.NOT_AUTHORIZED,
            f"the certificate of node {identity.node} does not cover {', '.join(missing)}",
        )
    return identifiers
