"""A node's session with this server, as the registry holds it, and the identifiers it serves."""

from __future__ import annotations

from enum import IntEnum

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.pki.identity import (
    Identifiers,
    NodeIdentity,
    parse_identifiers,
    uncovered_identifiers,
)
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.shares import OTHER, Holder
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello

_RETRYABLE_CODES = frozenset({Code.GOING_AWAY, Code.SESSION_LOST, Code.REPLACED})
"""The codes of dials that have not reached the node; another route may."""

RESTARTED = "the agent has been restarted"

RECONNECT_TIMEOUT = 5.0
"""Seconds for which dials wait for an agent that has lost its connection.

An agent that can reach the server is back after its next attempt. The first four follow each other
within at most 0.3, 0.6, 1.2 and 2.4 s (:mod:`yurttunnel.agent.connection_group`), together 4.5 s;
the rest is for the last one's handshakes. A node whose agent is not back by then is cut off: its
streams continue to wait, but new dials fail at once.
"""

RECONNECT_GRACE = 0.5
"""Seconds for which dials wait although another session of the node, a draining one, is connected.

The first attempt of a live agent comes within 0.3 s. Streams over the draining session are cut off
when its drain ends.
"""


class _AgentState(IntEnum):
    """Whether the agent is connected, and otherwise how long it has been away."""

    CONNECTED = 0
    RECONNECTING = 1  # for RECONNECT_GRACE
    OVERDUE = 2  # until RECONNECT_TIMEOUT has passed
    MISSING = 3


@implementer(INodeSession)
class NodeSession:
    """The session of this server with a node's agent; ``registry`` knows other routes to the node.

    While no connection carries it, dials wait until :data:`RECONNECT_TIMEOUT` after the loss, or
    until :data:`RECONNECT_GRACE` if another session leads to the node; later ones fail at once. A
    draining session whose agent was succeeded by another process is closed then, see
    :meth:`close_if_replaced`.
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
        self._agent_state = _AgentState.CONNECTED
        # When the connection was last lost.
        self._lost_at = 0.0
        self._waits: list[IDelayedCall] = []
        self.node = identity.node
        self.identity = identity
        self.identifiers = identifiers
        self.tunnel = tunnel
        tunnel.on_closed.append(lambda code, text: self._stop_waiting())

    @property
    def draining(self) -> bool:
        """Whether one of the ends wants new streams to take another route, if there is one."""
        if self.tunnel.draining:
            return True
        return self._agent_state >= _AgentState.OVERDUE and self._has_other_connected_session()

    @property
    def process(self) -> bytes:
        """Identifies the agent's process."""
        return self.tunnel.wire.peer.process

    @property
    def connected(self) -> bool:
        """Whether a connection carries it; otherwise it waits for the agent to reconnect."""
        return self.tunnel.connected

    def open_stream(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Open a stream to a target at the node, over another route if this session is lost."""
        return open_with_fallback(
            self._registry, self.tunnel.clock, self, host, port, timeout, request_id, holder
        )

    def open_without_fallback(
        self, host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        if self._agent_state is _AgentState.MISSING:
            self.tunnel.dial_answered(Code.SESSION_LOST)
            return fail(self._missing())
        dial = self.tunnel.open_stream(host, port, timeout, request_id, holder)
        self._dials.add(dial)
        return dial.addBoth(self._dial_ended, dial)

    def connection_lost(self) -> None:
        """Move waiting dials to another route if there is one, otherwise start their timeouts."""
        # If the session has had two connections, their ends may be reported one after the other.
        self._stop_waiting()
        clock = self.tunnel.clock
        self._lost_at = clock.seconds()
        self._agent_state = _AgentState.RECONNECTING
        self._waits = [
            clock.callLater(RECONNECT_GRACE, self._set_overdue),
            clock.callLater(RECONNECT_TIMEOUT, self._set_missing),
        ]
        another = self._registry.find_another(self)
        if another is not None and another.connected and not another.draining:
            self._end_dials()

    def resumed(self) -> None:
        """Let dials wait for their responses again: a connection carries the session."""
        self._stop_waiting()

    def sibling_serves(self) -> None:
        """Move dials that wait for the agent to a sibling that has it now."""
        if not self.connected:
            self._end_dials()

    def close_if_replaced(self) -> None:
        """Close a draining session whose agent is missing, if there is a newer process.

        The old process was killed, or its machine restarted, and its streams wait in vain.
        """
        if not self.tunnel.draining or self._agent_state is not _AgentState.MISSING:
            return
        sessions = self._registry.direct_sessions(self.node)
        newer = sessions[sessions.index(self) + 1 :]
        if any(isinstance(each, NodeSession) and each.process != self.process for each in newer):
            self.tunnel.close(Code.SESSION_LOST, RESTARTED)

    def _set_overdue(self) -> None:
        self._agent_state = _AgentState.OVERDUE
        if self._has_other_connected_session():
            self._registry.direct_changed(self.node)
            self._end_dials()

    def _set_missing(self) -> None:
        self._agent_state = _AgentState.MISSING
        self._end_dials()
        self.close_if_replaced()

    def _has_other_connected_session(self) -> bool:
        """Return whether another session of this server reaches the node now."""
        return any(
            session.connected
            for session in self._registry.direct_sessions(self.node)
            if session is not self
        )

    def _stop_waiting(self) -> None:
        self._agent_state = _AgentState.CONNECTED
        waits, self._waits = self._waits, []
        for call in waits:
            if call.active():
                call.cancel()

    def _end_dials(self) -> None:
        dials, self._dials = self._dials, set()
        for dial in dials:
            dial.cancel()

    def _missing(self) -> StreamFailed:
        away = self.tunnel.clock.seconds() - self._lost_at
        text = (
            f"the connection to the agent of node {self.node} was lost {away:.0f} s ago,"
            " and it has not reconnected yet"
        )
        return StreamFailed(Code.SESSION_LOST, text)

    def _dial_ended(self, result: IStream | Failure, dial: Deferred[IStream]) -> IStream | Failure:
        cancelled = dial not in self._dials
        self._dials.discard(dial)
        if cancelled and isinstance(result, Failure) and dial_error_code(result) is Code.CANCELLED:
            return Failure(self._missing())
        return result

    def snapshot(self) -> SessionSnapshot:
        return self.tunnel.snapshot()


def open_with_fallback(
    registry: SessionRegistry,
    clock: IReactorTime,
    session: INodeSession,
    host: str,
    port: int,
    timeout: float,
    request_id: str,
    holder: Holder,
) -> Deferred[IStream]:
    """Open a stream over ``session``, or, if that is lost first, over another route to its node.

    ``timeout`` is in seconds and includes both attempts. Fails with :class:`StreamFailed`.
    """
    began = clock.seconds()

    def open_by_other_route(reason: Failure) -> Deferred[IStream]:
        if dial_error_code(reason) not in _RETRYABLE_CODES:
            return fail(reason)
        other = registry.find_another(session)
        left = timeout - (clock.seconds() - began)
        if other is None or left <= 0:
            return fail(reason)
        return other.open_without_fallback(host, port, left, request_id, holder)

    opening = session.open_without_fallback(host, port, timeout, request_id, holder)
    return opening.addErrback(open_by_other_route)


def dial_error_code(reason: Failure) -> Code | None:
    """Return the code with which a dial has failed; ``None`` for a defect of this server."""
    error = reason.value
    return error.code if isinstance(error, StreamFailed) else None


def granted_identifiers(identity: NodeIdentity, hello: Hello) -> Identifiers:
    """Return the identifiers a node serves: those claimed in its HELLO, or all in its certificate.

    Raises :class:`Violation` for a claim that the certificate does not cover.
    """
    claimed = hello.properties.get("identifiers")
    if not claimed:
        return identity.identifiers
    try:
        identifiers = parse_identifiers(claimed)
    except ValueError as error:
        raise Violation(Code.PROTOCOL, f"node {identity.node}: {error}") from error
    missing = uncovered_identifiers(identity, identifiers)
    if missing:
        raise Violation(
            Code.NOT_AUTHORIZED,
            f"the certificate of node {identity.node} does not cover {', '.join(missing)}",
        )
    return identifiers
