"""Whether each API server can be reached, and so whether there is a cloud.

Each server is checked at the start and every ten seconds, all side by side, so that several that
are silent take no longer than one. What requests meet makes it quicker: a connection that fails or
breaks, or an answer that lets wait for itself, has the server checked at once.

=============  ================================  ==================================================
state          after a good check                after a failed one
=============  ================================  ==================================================
``UNKNOWN``    ``HEALTHY``                       ``UNHEALTHY``
``HEALTHY``    ``HEALTHY``                       ``UNHEALTHY``: its connections are closed
``UNHEALTHY``  ``HEALTHY`` with the last of so   ``UNHEALTHY``, and they are counted anew
               many in a row as are wanted
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
"""Between two tries of one check."""

_SPACING_SECONDS = 0.5
"""From the end of a good check to the next one at least, whatever requests meet. It is also when a
server that is well again is looked at once more."""

_MARGIN = 0.95
"""A check follows a little before the interval is over, so that the silence of a server is noticed
within the interval and the time of one check."""

_PAUSES = (1.0, 10.0)
"""Seconds between the checks of a server that is not well: the first ones come soon."""


_log = Logger()


Check = Callable[[Server, bool], Awaitable[None]]
"""Asks a server for a sign of life, on a fresh connection or not, as ``NodeLease.check`` does.

Raises :class:`CheckFailed` if there is none.
"""


class State(enum.Enum):
    """What is known of a server."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class ServerHealth(Reconciler):
    """Checks one server; ``changed(self)`` is called when its state is another."""

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
            self._look,
            spacing=_SPACING_SECONDS,
            backoff=Backoff(*_PAUSES),
        )
        self.server = server
        self.state = State.UNKNOWN
        self.problem: str | None = None
        """What the last check has found wrong, if anything."""
        self._clock = clock
        self._check = check
        self._settings = settings
        self._changed = changed
        self._good = 0

    async def _look(self) -> bool:
        deadline = self._clock.seconds() + self._settings.timeout
        trying = Deferred.fromCoroutine(self._try(deadline))
        try:
            self.problem = await trying.addTimeout(self._settings.timeout, self._clock)
        except DeferredTimeout:
            self.problem = f"no answer within {self._settings.timeout:g} s"
        if self.problem is None:
            self._found_well()
        else:
            self._good = 0
            self._become(State.UNHEALTHY)
        return self.problem is None

    async def _try(self, deadline: float) -> str | None:
        """Return what is wrong after all tries, for which there is time until ``deadline``."""
        problem = None
        for number in range(self._settings.retries):
            if number:
                # A try that is given up may end as one that has failed.
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

    def _found_well(self) -> None:
        self._good += 1
        if self.state is not State.UNHEALTHY or self._good >= self._settings.threshold:
            self._become(State.HEALTHY)
        else:
            self.trigger()

    def _become(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._changed(self)


@implementer(IConnectivity)
class Health(MultiService):
    """The health of all servers, and whether there is a cloud.

    ``lost(server, why)`` is called when a server is not healthy any more, before anybody is told
    by :meth:`on_change`.
    """

    def __init__(
        self,
        clock: IReactorTime,
        servers: Sequence[Server],
        check: Check,
        lost: Callable[[Server, str], object],
        settings: HealthSettings,
    ) -> None:
        super().__init__()
        self.online = False
        self._told: bool | None = None
        self._lost = lost
        self._callbacks: list[Callable[..., object]] = []
        self._awaiting: list[Callable[..., object]] = []
        self.servers: dict[Server, ServerHealth] = {}
        for server in servers:
            each = ServerHealth(clock, server, check, settings, self._changed)
            each.setServiceParent(self)
            self.servers[server] = each

    @property
    def known(self) -> bool:
        """Whether the first checks have said if there is a cloud."""
        return self.online or all(each.state is not State.UNKNOWN for each in self.servers.values())

    def on_change(self, callback: Callable[[bool], object]) -> None:
        """See ``IConnectivity``."""
        self._callbacks.append(callback)

    def on_known(self, callback: Callable[[], object]) -> None:
        """Have ``callback()`` called once it is known whether there is a cloud."""
        self._awaiting.append(callback)

    def suspect(self, server: Server) -> None:
        """Have a server checked now: something has come of it that should not, or has not come."""
        self.servers[server].trigger(at_once=True)

    def suspect_all(self) -> None:
        """Have all servers checked now."""
        for each in self.servers.values():
            each.trigger(at_once=True)

    def _changed(self, health: ServerHealth) -> None:
        server = health.server
        server.healthy = health.state is State.HEALTHY
        online = any(each.healthy for each in self.servers)
        turned, self.online = online is not self.online, online
        if server.healthy:
            _log.info("{server} is healthy", server=server)
        else:
            why = f"{server} is not healthy: {health.problem}"
            _log.warn("{why}", why=why)
            self._lost(server, why)
        if self.known and self._told is not online:
            self._told = online
            self._tell(online)
        for callback in self._callbacks if turned else ():
            _call(callback, online)
        if self._awaiting and self.known:
            awaiting, self._awaiting = self._awaiting, []
            for callback in awaiting:
                _call(callback)

    def _tell(self, online: bool) -> None:
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
        # The others are to know it all the same.
        _log.failure("Defect: a change of connectivity could not be told")
