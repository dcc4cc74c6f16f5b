"""The server as a service: its listeners, and its graceful shutdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.timeouts import all_fired_within
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.wire.codes import Code

PORT_CLOSE_TIMEOUT = 2.0
"""The timeout in seconds for closing the listening ports."""


class BoundPort(Protocol):
    """A listening port, or several."""

    def stopListening(self) -> Deferred[Any] | None:
        """Stop accepting connections."""


class Listener(NamedTuple):
    """Something to listen on: ``listen`` binds at once, or raises CannotListen."""

    name: str
    listen: Callable[[], BoundPort]


class SessionOwner(Protocol):
    """A holder of sessions, with agents or with siblings, whose streams get time to end."""

    def sessions(self) -> list[TunnelSession]:
        """Return all sessions, including those that are finishing their streams."""

    def drain(self, text: str) -> None:
        """Reject new peers, and let the sessions end with their last stream."""

    def close_sessions(self, code: Code, text: str) -> None:
        """Close all sessions now."""


class Drainable(Protocol):
    """The part behind a listener whose connections need streams."""

    def drain(self) -> Deferred[Any]:
        """Start to drain; return a ``Deferred`` that fires when callers have everything."""

    def close(self) -> None:
        """Abort what has not ended."""


class ServerService(Service):
    """Runs the listeners and shuts the sessions down gracefully.

    ``listeners`` are bound in order when the service starts, and closed when it begins to stop.
    ``session_owners`` have the sessions, and ``drainables`` are behind those listeners whose
    connections need streams. ``drain_timeout`` is in seconds.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        listeners: list[Listener],
        session_owners: Sequence[SessionOwner],
        drainables: Sequence[Drainable],
        drain_timeout: float,
    ) -> None:
        self._clock = clock
        self._listeners = listeners
        self._session_owners = session_owners
        self._drainables = drainables
        self.drain_timeout = drain_timeout
        self._ports: dict[str, BoundPort] = {}
        self._draining = False

    def not_accepting(self) -> str | None:
        """Return, for ``/readyz``, that the server drains, or which listeners are not bound."""
        if self._draining:
            return "draining: the server is about to stop"
        missing = [each.name for each in self._listeners if each.name not in self._ports]
        return f"not listening: {', '.join(missing)}" if missing else None

    def listening(self) -> list[tuple[str, IAddress]]:
        """Return the names of the single ports that are bound now, each with its address."""
        return [
            (name, port.getHost())
            for name, port in self._ports.items()
            if IListeningPort.providedBy(port)
        ]

    def startService(self) -> None:
        """Bind all listeners, or none: a failure ends the process with a message."""
        try:
            for listener in self._listeners:
                self._ports[listener.name] = listener.listen()
        except BaseException:
            # Usually SystemExit: CannotListen.
            for port in self._ports.values():
                port.stopListening()
            self._ports.clear()
            raise
        super().startService()

    def stopService(self) -> Deferred[None]:
        """Accept nothing new, let streams end within the drain timeout, then abort the rest."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._draining = True
        super().stopService()
        closing = self._close_ports()
        deadline = self._clock.seconds() + self.drain_timeout
        ended = [session.ended() for session in self._sessions()]
        answered = [drainable.drain() for drainable in self._drainables]
        for owner in self._session_owners:
            owner.drain("the server is about to stop")
        if await all_fired_within(self._clock, self.drain_timeout, ended):
            # A stream ends before a caller that reads slowly has received the last of it.
            left = max(0.0, deadline - self._clock.seconds())
            if not await all_fired_within(self._clock, left, answered):
                self._log.warn(
                    "callers had not read all of their responses, or had not closed, after"
                    " --drain-timeout; their connections are reset"
                )
        else:
            self._log.warn(
                "{count} sessions still had streams after --drain-timeout; they are ended",
                count=len(self._sessions()),
            )
        for owner in self._session_owners:
            owner.close_sessions(Code.GOING_AWAY, "the server has stopped")
        for drainable in self._drainables:
            drainable.close()
        await all_fired_within(self._clock, PORT_CLOSE_TIMEOUT, closing)

    def _sessions(self) -> list[TunnelSession]:
        return [session for owner in self._session_owners for session in owner.sessions()]

    def _close_ports(self) -> list[Deferred[Any]]:
        ports = list(self._ports.values())
        self._ports.clear()
        return [maybeDeferred(port.stopListening) for port in ports]
