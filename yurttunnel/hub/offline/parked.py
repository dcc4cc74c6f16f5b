"""Watches that wait for the cloud: nothing changes meanwhile that they could tell.

They end as watches do, so that clients begin anew: when their time is over, and when the cloud is
back. Then they end one after the other, in any order, so that they do not all come at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.http.interfaces import ExchangeFailed, IExchange
from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.hub.media.interfaces import IMedia, TypeMeta

BOOKMARK_SECONDS = 60.0
"""Seconds between bookmarks, as the API has them (``defaultBookmarkFrequency`` of k8s.io/apiserver
pkg/storage/cacher)."""

SPREAD = 1.5
"""Seconds within which all watches end when the cloud is back: 2, with what may come between."""

_TICK = 1.0
_TICK_OF_RETURN = 0.05


@dataclass(eq=False, slots=True)
class ParkedWatch:
    """One of them; times are those of the clock.

    ``type`` is that of bookmarks, ``None`` for a watch without.
    """

    exchange: IExchange
    media: IMedia
    version: str
    ends_at: float
    type: TypeMeta | None = None
    bookmark_at: float = 0.0


class ParkedWatches:
    """All of them, with one timer as long as there are any."""

    def __init__(self, clock: IReactorTime, connectivity: IConnectivity) -> None:
        self._clock = clock
        self._connectivity = connectivity
        self._watches: dict[ParkedWatch, None] = {}
        self._timer: IDelayedCall | None = None
        connectivity.on_change(self._connectivity_changed)

    def __len__(self) -> int:
        """Count them."""
        return len(self._watches)

    def park(self, watch: ParkedWatch) -> None:
        """Have a watch wait, whose response has begun."""
        if self._connectivity.online:
            # The cloud came back while the first events were sent.
            self._end_within(watch, random.uniform(0, SPREAD))
        watch.bookmark_at = self._clock.seconds() + BOOKMARK_SECONDS
        self._watches[watch] = None

        def ended(error: ExchangeFailed | None) -> None:
            self._watches.pop(watch, None)

        watch.exchange.on_end(ended)
        if self._watches and self._timer is None:
            self._schedule()

    def end_all(self) -> None:
        """End all at once: the hub stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watch in list(self._watches):
            watch.exchange.finish()

    def _connectivity_changed(self, online: bool) -> None:
        if not online or not self._watches:
            return
        watches = list(self._watches)
        random.shuffle(watches)
        for place, watch in enumerate(watches):
            self._end_within(watch, SPREAD * place / len(watches))
        if self._timer is not None:
            self._timer.cancel()
        self._schedule()

    def _end_within(self, watch: ParkedWatch, seconds: float) -> None:
        watch.ends_at = min(watch.ends_at, self._clock.seconds() + seconds)

    def _schedule(self) -> None:
        seconds = _TICK_OF_RETURN if self._connectivity.online else _TICK
        self._timer = self._clock.callLater(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        for watch in list(self._watches):
            if watch.ends_at <= now:
                watch.exchange.finish()
            elif watch.type is not None and watch.bookmark_at <= now:
                watch.bookmark_at = now + BOOKMARK_SECONDS
                watch.exchange.write(watch.media.bookmark(watch.type, watch.version, False))
        if self._watches:
            self._schedule()
