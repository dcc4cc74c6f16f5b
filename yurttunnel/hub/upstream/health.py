"""The health of each API server, and whether the cloud is reachable.

Each server is checked at startup and every ten seconds, all at the same time, so that several
servers that do not respond take no longer than one. Requests trigger additional checks: a
connection that fails or breaks, or a slow response, has the server checked immediately.

=============  ================================  ==================================================
state          after a successful check          after a failed check
=============  ================================  ==================================================
``UNKNOWN``    ``HEALTHY``                       ``UNHEALTHY``
``HEALTHY``    ``HEALTHY``                       ``UNHEALTHY``: its connections are closed
``UNHEALTHY``  ``HEALTHY`` after the threshold   ``UNHEALTHY``, and the count starts again
               of consecutive successes
=============  ================================  ==================================================
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.hub.settings import HealthSettings
from yurttunnel.hub.upstream.node_lease import CheckFailed
from yurttunnel.hub.upstream.servers import Server
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.reconciler import Reconciler

_RETRY_SECONDS = 0.2
"""The pause in seconds between two attempts of one check."""

_SPACING_SECONDS = 0.5
"""Minimum time in seconds from a successful check to the next one, whatever requests report. It is
also the time after which a recovering server is checked again."""

_MARGIN = 0.95
"""Checks start before the interval has elapsed, so a server that stops responding is detected
within the interval plus the time of one check."""

_PAUSES = (1.0, 10.0)
"""The minimum and maximum pauses between checks of an unhealthy server, in seconds."""


_log = Logger()


Check = Callable[[Server, bool], Awaitable[None]]
"""Tests whether a server is alive, on a new connection or not, as ``NodeLease.check`` does.

Raises :class:`CheckFailed` if it is not.
"""


class State(enum.Enum):
    """The state of a server."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class ServerHealth(Reconciler):
    """Checks one server; ``changed(self)`` is called when its state changes."""

    def __init__(
        self,
        clock: IReactorTime,
        server: Server,
        check: Check,
        settings: HealthSettings,
        changed: Callable[[ServerHealth], object],
    ) -> None:
        super().__init__(
            clock,
            settings.interval * _MARGIN,
            f"checking {server}",
            self._run_check,
            spacing=_SPACING_SECONDS,
            backoff=Backoff(*_PAUSES),
        )
        self.server = server
        self.state = State.UNKNOWN
        self.problem: str | None = None
        """The error of the last check, ``None`` if it was successful."""
        self._clock = clock
        self._check = check
        self._settings = settings
        self._changed = changed
        self._successes = 0

    async def _run_check(self) -> bool:
        deadline = self._clock.seconds() + self._settings.timeout
        trying = Deferred.fromCoroutine(self._try(deadline))
        try:
            self.problem = await trying.addTimeout(self._settings.timeout, self._clock)
        except DeferredTimeout:
            self.problem = f"no response within {self._settings.timeout:g} s"
        if self.problem is None:
            self._succeeded()
        else:
            self._successes = 0
            # A name may have an address that accepts connections and then does not respond.
            self.server.skip += 1
            self._set_state(State.UNHEALTHY)
        return self.problem is None

    async def _try(self, deadline: float) -> str | None:
        """Return the error after all attempts, which have time until ``deadline``."""
        problem = None
        for number in range(self._settings.retries):
            if number:
                # An attempt that was cancelled may end as a failed one.
                if not self.running or self._clock.seconds() + _RETRY_SECONDS >= deadline:
                    break
                await deferLater(self._clock, _RETRY_SECONDS)
            try:
                await self._check(self.server, number > 0)
            except CheckFailed as error:
                problem = str(error)
            else:
                return None
        return problem

    def _succeeded(self) -> None:
        self._successes += 1
        if self.state is not State.UNHEALTHY or self._successes >= self._settings.threshold:
            self._set_state(State.HEALTHY)
        else:
            self.trigger()

    def _set_state(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._changed(self)


@implementer(IConnectivity)
class Health(MultiService):
    """The health of all servers, and whether the cloud is reachable.

    ``on_lost(server, why)`` is called when a server becomes unhealthy, before the callbacks of
    :meth:`on_change`.
    """

    def __init__(
        self,
        clock: IReactorTime,
        servers: Sequence[Server],
        check: Check,
        on_lost: Callable[[Server, str], object],
        settings: HealthSettings,
    ) -> None:
        super().__init__()
        self.online = False
        self.known = not servers
        """Whether the first checks have determined if the cloud is reachable."""
        self.detection_seconds = 2 * (settings.timeout + _SPACING_SECONDS)
        """After this time, the checks that a failed request has triggered are complete: one may
        have been under way."""
        self._logged: bool | None = None
        self._on_lost = on_lost
        self._callbacks: list[Callable[..., object]] = []
        self._on_known: list[Callable[..., object]] = []
        self.servers: dict[Server, ServerHealth] = {}
        for server in servers:
            each = ServerHealth(clock, server, check, settings, self._changed)
            each.setServiceParent(self)
            self.servers[server] = each

    def on_change(self, callback: Callable[[bool], object]) -> None:
        self._callbacks.append(callback)

    def on_known(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` once it is known whether the cloud is reachable."""
        self._on_known.append(callback)

    def suspect(self, server: Server) -> None:
        """Check a server now, because a request has failed or is slow."""
        self.servers[server].trigger(settle=0.0)

    def suspect_all(self) -> None:
        """Check all servers now."""
        for each in self.servers.values():
            each.trigger(settle=0.0)

    def _changed(self, health: ServerHealth) -> None:
        server = health.server
        server.healthy = health.state is State.HEALTHY
        online = any(each.healthy for each in self.servers)
        has_changed, self.online = online is not self.online, online
        self.known = online or all(
            each.state is not State.UNKNOWN for each in self.servers.values()
        )
        if server.healthy:
            _log.info("{server} is healthy", server=server)
        else:
            why = f"{server} is not healthy: {health.problem}"
            _log.warn("{why}", why=why)
            self._on_lost(server, why)
        if self.known and self._logged is not online:
            self._logged = online
            self._log_connectivity(online)
        for callback in self._callbacks if has_changed else ():
            _call(callback, online)
        if self._on_known and self.known:
            callbacks, self._on_known = self._on_known, []
            for callback in callbacks:
                _call(callback)

    def _log_connectivity(self, online: bool) -> None:
        if online:
            _log.info("the cloud can be reached: requests are forwarded")
        else:
            _log.warn(
                "no API server can be reached: requests are served from the cache until one is"
                " healthy again"
            )


def _call(callback: Callable[..., object], *arguments: bool) -> None:
    try:
        callback(*arguments)
    except Exception:
        # The other callbacks must be called nevertheless.
        _log.failure("Defect: a callback for a change of connectivity failed")
