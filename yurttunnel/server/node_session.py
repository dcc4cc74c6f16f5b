"""A node's session with this server, as the registry holds it, and what it is chosen for."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.pki.identity import Identifiers, NodeIdentity, parse_identifiers, uncovered
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello

_ELSEWHERE = frozenset({Code.GOING_AWAY, Code.SESSION_LOST, Code.REPLACED})
"""What a dial ends with that has not come to the node: another way may lead there."""


@implementer(INodeSession)
class NodeSession:
    """The session that this server has with a node's agent; ``registry`` knows other ways to it."""

    def __init__(
        self,
        identity: NodeIdentity,
        identifiers: Identifiers,
        tunnel: TunnelSession,
        registry: SessionRegistry,
    ) -> None:
        self._registry = registry
        self._dials: set[Deferred[IStream]] = set()
        self.node = identity.node
        self.identity = identity
        self.identifiers = identifiers
        self.tunnel = tunnel

    @property
    def draining(self) -> bool:
        """Whether one of the ends wants no new streams."""
        return self.tunnel.going_away

    @property
    def connected(self) -> bool:
        """Whether a connection carries it; one that has none waits for the agent to be back."""
        return self.tunnel.connected

    def open_stream(
        self, host: str, port: int, timeout: float, request_id: str
    ) -> Deferred[IStream]:
        """Open a stream to a target at the node, by another way if this one is lost."""
        opening = open_by_two_ways(
            self._registry, self.tunnel.clock, self, host, port, timeout, request_id
        )
        return Deferred.fromCoroutine(opening)

    def open_here(self, host: str, port: int, timeout: float, request_id: str) -> Deferred[IStream]:
        """Open a stream to a target at the node in this session."""
        return Deferred.fromCoroutine(self._open_here(host, port, timeout, request_id))

    def connection_lost(self) -> None:
        """Have dials that wait go another way, if there is one: it may be long until it is back."""
        another = self._registry.find_another(self)
        if another is None or not another.connected:
            return
        dials, self._dials = self._dials, set()
        for dial in dials:
            dial.cancel()

    async def _open_here(self, host: str, port: int, timeout: float, request_id: str) -> IStream:
        dial = self.tunnel.open_stream(host, port, timeout, request_id)
        self._dials.add(dial)
        try:
            return await dial
        except StreamFailed as error:
            if error.code is Code.CANCELLED and dial not in self._dials:
                text = f"the connection to the agent of node {self.node} is lost"
                raise StreamFailed(Code.SESSION_LOST, text) from error
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
) -> IStream:
    """Open a stream by ``session``, or, if that is lost before, by another way to its node.

    All is done within ``timeout`` seconds. Raises :class:`StreamFailed`.
    """
    began = clock.seconds()
    try:
        return await session.open_here(host, port, timeout, request_id)
    except StreamFailed as error:
        if error.code not in _ELSEWHERE:
            raise
        other = registry.find_another(session)
        left = timeout - (clock.seconds() - began)
        if other is None or left <= 0:
            raise
    return await other.open_here(host, port, left, request_id)


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
