"""The Events of an outage on their way to the cloud, once it is back."""

from __future__ import annotations

from collections.abc import Callable

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from yurttunnel.hub.cache.interfaces import CacheFailed, ICache, KeptEvent
from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.reconciler import Reconciler

SPACING = 0.2
"""Seconds between two of them: many nodes may come back at once."""

SEND_SECONDS = 10.0
"""Seconds for the answer to one."""

_AT_ONCE = 20
_PERIOD = 60.0
_BACKOFF = (2.0, 60.0)

Send = Callable[[KeptEvent], Deferred[int | None]]
"""Sends one, with its token or as the node.

Returns the status of the answer; ``None`` when no API server has answered.
"""


class EventSender(MultiService):
    """Sends them in their order, as long as there are any and somebody answers.

    ``sent`` and ``dropped`` count them; dropped are those that the API does not want.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, cache: ICache, connectivity: IConnectivity, send: Send
    ) -> None:
        super().__init__()
        self._clock = clock
        self._cache = cache
        self._connectivity = connectivity
        self._send = send
        self._warnings = RateLimitedLog(clock, self._log)
        self.sent = 0
        self.dropped = 0
        self._loop = Reconciler(
            clock,
            _PERIOD,
            "sending the events of an outage",
            self._send_all,
            backoff=Backoff(*_BACKOFF),
            expected=(CacheFailed,),
        )
        self._loop.setServiceParent(self)
        connectivity.on_change(self._connectivity_changed)

    def _connectivity_changed(self, online: bool) -> None:
        if online:
            self._loop.trigger()

    async def _send_all(self) -> bool:
        """Send all; return whether the API took or refused each, or there was nobody to ask."""
        while self._connectivity.online:
            events = await self._cache.kept_events(_AT_ONCE)
            if not events:
                break
            for event in events:
                if not self._connectivity.online:
                    break
                if not await self._send_one(event):
                    return False
                await deferLater(self._clock, SPACING)
        return True

    async def _send_one(self, event: KeptEvent) -> bool:
        try:
            status = await self._send(event).addTimeout(SEND_SECONDS, self._clock)
        except TimeoutError:
            return False
        if status is None or status >= 500 or status == 429:
            return False
        # 409: it was created before, by an attempt whose answer was lost.
        if status < 300 or status == 409:
            self.sent += 1
        else:
            self.dropped += 1
            self._warnings.warn(
                "An event of the outage is lost: the Kubernetes API answered {status} to {path}",
                status=status,
                path=event.path,
            )
        self._cache.drop_event(event.id)
        return True
