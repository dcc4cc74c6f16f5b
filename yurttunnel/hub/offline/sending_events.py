"""The Events of an outage on their way to the cloud, once it is back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from twisted.application.service import MultiService
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
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

TRIES = 5
"""How often an Event may fail until others are sent before it: with the pauses it is a minute."""

_AT_ONCE = 20
_PERIOD = 60.0
_BACKOFF = (2.0, 60.0)

Send = Callable[[KeptEvent], Deferred[int | None]]
"""Sends one, with its token or as the node.

Returns the status of the answer; ``None`` when no API server has answered.
"""


class EventSender(MultiService):
    """Sends them in their order, as long as there are any and somebody answers.

    One that fails :data:`TRIES` times is passed over, so that it does not keep the others back.
    Once the API has answered one of those, it has a last try: it is not the API that is in trouble.

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
        # Until the cache does not have them any more: a full disk may not let it forget them.
        self._done: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._passed_over: set[int] = set()
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
            events = await self._next()
            if not events:
                if not self._passed_over:
                    break
                # None is left that could show whose fault it is: all begin anew.
                self._passed_over.clear()
                self._failures.clear()
                return False
            for event in events:
                if not self._connectivity.online:
                    break
                if not await self._send_one(event):
                    return False
                await deferLater(self._clock, SPACING)
        return True

    async def _next(self) -> list[KeptEvent]:
        """Return the oldest that are to be sent; those that are done or passed over are older."""
        behind = len(self._done) + len(self._passed_over)
        events = await self._cache.kept_events(_AT_ONCE + behind)
        self._done.intersection_update(event.id for event in events)
        return [
            event
            for event in events
            if event.id not in self._done and event.id not in self._passed_over
        ]

    async def _send_one(self, event: KeptEvent) -> bool:
        try:
            status = await self._send(event).addTimeout(SEND_SECONDS, self._clock)
        except TimeoutError:
            return self._failed(event)
        except CancelledError:
            raise
        except Exception as error:
            # What cannot be written as a request is not to hold up the others, whatever it is.
            self._drop(event, f"it cannot be sent: {error}")
            return True
        if status is None or status >= 500 or status == 429:
            return self._failed(event)
        # 409: it is there, by an attempt whose answer was lost or since it happened before, and
        # tells what this one does.
        if status < 300 or status == 409:
            self.sent += 1
            self._forget(event)
        else:
            self._drop(event, f"the Kubernetes API answered {status}")
        self._passed_over.clear()
        return True

    def _failed(self, event: KeptEvent) -> bool:
        """Count a failure; return whether the next one may be sent without a pause."""
        self._failures[event.id] += 1
        if self._failures[event.id] > TRIES:
            self._drop(event, "the Kubernetes API fails on it, and not on others")
            return True
        if self._failures[event.id] == TRIES:
            self._passed_over.add(event.id)
        return False

    def _drop(self, event: KeptEvent, why: str) -> None:
        self.dropped += 1
        self._warnings.warn(
            "An event of the outage is lost ({path}): {why}", path=event.path, why=why
        )
        self._forget(event)

    def _forget(self, event: KeptEvent) -> None:
        self._failures.pop(event.id, None)
        self._done.add(event.id)
        self._cache.drop_event(event.id)
