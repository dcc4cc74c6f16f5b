"""Sending of the stored Events of an outage, once the cloud is reachable again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from twisted.application.service import MultiService
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from yurttunnel.hub.cache.interfaces import CacheFailed, ICache, StoredEvent
from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.reconciler import Reconciler

SPACING = 0.2
"""The pause between two Events in seconds: many nodes may come back at the same time."""

SEND_SECONDS = 10.0
"""The timeout of one Event in seconds."""

MAX_ATTEMPTS = 5
"""The number of failures after which an Event is skipped; with the pauses this takes a minute."""

_BATCH_SIZE = 20
_PERIOD = 60.0
_BACKOFF = (2.0, 60.0)

Send = Callable[[StoredEvent], Deferred[int | None]]
"""Sends an Event, with its token or as the node.

Returns the status of the response; ``None`` if no API server has responded.
"""


class EventSender(MultiService):
    """Sends Events in their order, as long as there are any and an API server responds.

    An Event that fails :data:`MAX_ATTEMPTS` times is skipped, so it does not block the others. Once
    the API has responded to another Event, the skipped ones get a last attempt: the API itself is
    working. ``sent`` and ``dropped`` are counters; Events that the API rejects are dropped.
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
        # Events that the cache may still have: it cannot delete them while the disk is full.
        self._done: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._skipped: set[int] = set()
        self._backoff = Backoff(*_BACKOFF)
        self._loop = Reconciler(
            clock,
            _PERIOD,
            "sending the events of an outage",
            self._send_all,
            backoff=self._backoff,
            expected=(CacheFailed,),
        )
        self._loop.setServiceParent(self)
        connectivity.on_change(self._connectivity_changed)

    def _connectivity_changed(self, online: bool) -> None:
        if online:
            self._loop.trigger()

    async def _send_all(self) -> bool:
        """Send all Events; return whether the API has processed each, or is not reachable."""
        while self._connectivity.online:
            events = await self._next()
            if not events:
                if not self._skipped:
                    break
                # No Event is left to show whether these Events or the API are at fault: retry all.
                self._skipped.clear()
                self._failures.clear()
                return False
            for event in events:
                if not self._connectivity.online:
                    break
                if not await self._send_one(event):
                    return False
                await deferLater(self._clock, SPACING)
        return True

    async def _next(self) -> list[StoredEvent]:
        """Return the oldest Events to be sent; those that are done or skipped are older."""
        behind = len(self._done) + len(self._skipped)
        events = await self._cache.stored_events(_BATCH_SIZE + behind)
        self._done.intersection_update(event.id for event in events)
        return [
            event
            for event in events
            if event.id not in self._done and event.id not in self._skipped
        ]

    async def _send_one(self, event: StoredEvent) -> bool:
        try:
            status = await self._send(event).addTimeout(SEND_SECONDS, self._clock)
        except TimeoutError:
            return self._failed(event)
        except CancelledError:
            raise
        except Exception as error:
            # An Event that cannot be encoded as a request must not block the others.
            self._drop(event, f"it cannot be sent: {error}")
            return True
        if status is None or status >= 500 or status == 429:
            return self._failed(event)
        # 409: the Event exists, because an earlier response was lost or it is a repetition, and it
        # has been updated.
        if status < 300 or status == 409:
            self.sent += 1
            self._forget(event)
        else:
            self._drop(event, f"the Kubernetes API responded with {status}")
        self._skipped.clear()
        self._backoff.reset()
        return True

    def _failed(self, event: StoredEvent) -> bool:
        """Count a failure; return whether the next Event may be sent without a pause."""
        self._failures[event.id] += 1
        if self._failures[event.id] > MAX_ATTEMPTS:
            self._drop(event, "the Kubernetes API fails for this Event, and not for others")
            return True
        if self._failures[event.id] == MAX_ATTEMPTS:
            self._skipped.add(event.id)
        return False

    def _drop(self, event: StoredEvent, why: str) -> None:
        self.dropped += 1
        self._warnings.warn(
            "An event of the outage is lost ({path}): {why}", path=event.path, why=why
        )
        self._forget(event)

    def _forget(self, event: StoredEvent) -> None:
        self._failures.pop(event.id, None)
        self._done.add(event.id)
        self._cache.delete_event(event.id)
