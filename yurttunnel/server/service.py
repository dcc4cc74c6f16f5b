"""The server as a service: what listens where, and in which order it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IListeningPort, IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.drain import within
from yurttunnel.server.agents import AgentListener
from yurttunnel.server.dialing import DialingFactory
from yurttunnel.wire.codes import Code

PORT_CLOSE_TIMEOUT = 2.0
"""Seconds in which the listening ports have to be closed."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One thing to listen on: ``listen`` binds at once, or raises CannotListen.

    One that ``outlives_sessions`` is closed last; the others when stopping begins.
    """

    name: str
    listen: Callable[[], IListeningPort]
    outlives_sessions: bool = False


class ServerService(MultiService):
    """Runs the listeners and ends the sessions in an orderly way.

    ``listeners`` are bound in their order when the service starts, and then its child services
    start; those stop only after the sessions have ended. ``callers`` are the factories behind
    those listeners whose connections become streams. ``drain_timeout`` is in seconds.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        listeners: list[Listener],
        agents: AgentListener,
        callers: list[DialingFactory],
        drain_timeout: float,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._listeners = listeners
        self._agents = agents
        self._callers = callers
        self._drain_timeout = drain_timeout
        self._ports: dict[str, IListeningPort] = {}
        self._draining = False

    def not_accepting(self) -> str | None:
        """Say that the server drains, or which listeners are not bound, for ``/readyz``."""
        if self._draining:
            return "draining: the server is about to stop"
        missing = [each.name for each in self._listeners if each.name not in self._ports]
        return f"not listening: {', '.join(missing)}" if missing else None

    def startService(self) -> None:
        """Bind all listeners, or none: what cannot be bound ends the process with a sentence."""
        try:
            for listener in self._listeners:
                self._ports[listener.name] = listener.listen()
        except BaseException:
            # SystemExit, mostly: CannotListen.
            for port in self._ports.values():
                port.stopListening()
            self._ports.clear()
            raise
        super().startService()

    def stopService(self) -> Deferred[None]:
        """Take nothing new, let streams end within the drain timeout, then end the rest."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._draining = True
        first = [each.name for each in self._listeners if not each.outlives_sessions]
        closing = self._close_ports(first)
        ended = [session.ended() for session in self._agents.sessions()]
        self._agents.drain("the server is about to stop")
        if not await within(self._clock, self._drain_timeout, ended):
            self._log.warn(
                "{count} sessions still had streams after --drain-timeout; they are ended",
                count=len(self._agents.sessions()),
            )
        self._agents.close_sessions(Code.GOING_AWAY, "the server has stopped")
        for caller in self._callers:
            caller.close()
        closing += self._close_ports(list(self._ports))
        await within(self._clock, PORT_CLOSE_TIMEOUT, closing)
        await super().stopService()

    def _close_ports(self, names: list[str]) -> list[Deferred[Any]]:
        ports = [self._ports.pop(name) for name in names if name in self._ports]
        return [maybeDeferred(port.stopListening) for port in ports]
