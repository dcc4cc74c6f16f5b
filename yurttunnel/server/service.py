"""The server as a service: what listens where, and in which order it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.waiting import within
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.wire.codes import Code

PORT_CLOSE_TIMEOUT = 2.0
"""Seconds in which the listening ports have to be closed."""


class Listening(Protocol):
    """What has been bound: one port, or several."""

    def stopListening(self) -> Deferred[Any] | None:
        """Accept nothing more."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One thing to listen on: ``listen`` binds at once, or raises CannotListen."""

    name: str
    listen: Callable[[], Listening]


class SessionHolder(Protocol):
    """What has sessions, whose streams are given time to end: with agents, or with siblings."""

    def sessions(self) -> list[TunnelSession]:
        """Return all sessions, those too that only end their streams."""

    def drain(self, text: str) -> None:
        """Take no new peers, and let the sessions end with their last stream."""

    def close_sessions(self, code: Code, text: str) -> None:
        """End every session now."""


class Caller(Protocol):
    """What is behind a listener whose connections need streams."""

    def drain(self) -> Deferred[Any]:
        """Begin to end; return what fires when callers have all that there is for them."""

    def close(self) -> None:
        """Abort what has not ended."""


class ServerService(Service):
    """Runs the listeners and ends the sessions in an orderly way.

    ``listeners`` are bound in their order when the service starts, and closed when it begins to
    stop. ``holders`` have the sessions, and ``callers`` are behind those listeners whose
    connections need streams. ``drain_timeout`` is in seconds.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        listeners: list[Listener],
        holders: Sequence[SessionHolder],
        callers: Sequence[Caller],
        drain_timeout: float,
    ) -> None:
        self._clock = clock
        self._listeners = listeners
        self._holders = holders
        self._callers = callers
        self.drain_timeout = drain_timeout
        self._ports: dict[str, Listening] = {}
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
        super().stopService()
        closing = self._close_ports()
        deadline = self._clock.seconds() + self.drain_timeout
        ended = [session.ended() for session in self._sessions()]
        answered = [caller.drain() for caller in self._callers]
        for holder in self._holders:
            holder.drain("the server is about to stop")
        if await within(self._clock, self.drain_timeout, ended):
            # A stream has ended before a caller that reads slowly has the last of it.
            left = max(0.0, deadline - self._clock.seconds())
            if not await within(self._clock, left, answered):
                self._log.warn(
                    "callers had not taken all of their answers, or had not closed, after"
                    " --drain-timeout; their connections are reset"
                )
        else:
            self._log.warn(
                "{count} sessions still had streams after --drain-timeout; they are ended",
                count=len(self._sessions()),
            )
        for holder in self._holders:
            holder.close_sessions(Code.GOING_AWAY, "the server has stopped")
        for caller in self._callers:
            caller.close()
        await within(self._clock, PORT_CLOSE_TIMEOUT, closing)

    def _sessions(self) -> list[TunnelSession]:
        return [session for holder in self._holders for session in holder.sessions()]

    def _close_ports(self) -> list[Deferred[Any]]:
        ports = list(self._ports.values())
        self._ports.clear()
        return [maybeDeferred(port.stopListening) for port in ports]
