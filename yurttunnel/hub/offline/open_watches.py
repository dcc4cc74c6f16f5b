"""Watches that are open while offline; they have no events, because nothing changes.

They end like other watches, so that clients start again: after their timeout, and when the cloud is
reachable. Then they end in random order, spread over time, so that clients return one by one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.http.interfaces import ExchangeFailed, IExchange
from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.hub.media.interfaces import ICodec, TypeMeta

BOOKMARK_SECONDS = 60.0
"""The interval of bookmarks in seconds, the same as the API's (``defaultBookmarkFrequency`` of
k8s.io/apiserver pkg/storage/cacher)."""

SPREAD = 1.5
"""The seconds in which all watches end when the cloud is reachable; 2 are allowed."""

_MIN_SECONDS = 1.0
"""The minimum duration of a watch. client-go takes one that ends sooner without an event for a
failure (``watchHandler`` of k8s.io/client-go tools/cache/reflector.go)."""

_TICK = 1.0
_TICK_OF_RETURN = 0.05


@dataclass(eq=False, slots=True)
class OpenWatch:
    """An open watch; times are those of the clock.

    ``type`` is the type of bookmarks, ``None`` for a watch without bookmarks.
    """

    exchange: IExchange
    codec: ICodec
    version: str
    ends_at: float
    type: TypeMeta | None = None
    began_at: float = 0.0
    bookmark_at: float = 0.0


class OpenWatches:
    """All open watches, with one timer while there are any."""

    def __init__(self, clock: IReactorTime, connectivity: IConnectivity) -> None:
        self._clock = clock
        self._connectivity = connectivity
        self._watches: dict[OpenWatch, None] = {}
        self._timer: IDelayedCall | None = None
        connectivity.on_change(self._connectivity_changed)

    def __len__(self) -> int:
        """Return the number of watches."""
        return len(self._watches)

    def add(self, watch: OpenWatch) -> None:
        """Keep a watch open whose response has begun."""
        watch.began_at = self._clock.seconds()
        watch.bookmark_at = watch.began_at + BOOKMARK_SECONDS
        if self._connectivity.online:
            # The cloud became reachable while the first events were sent, or it has just been lost
            # and the health checks are under way.
            self._end_soon(watch, random.random())
        self._watches[watch] = None

        def ended(error: ExchangeFailed | None) -> None:
            self._watches.pop(watch, None)

        watch.exchange.on_end(ended)
        if self._watches and self._timer is None:
            self._schedule()

    def end_all(self) -> None:
        """End all watches at once, because the hub is stopping."""
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
            self._end_soon(watch, place / len(watches))
        if self._timer is not None:
            self._timer.cancel()
        self._schedule()

    def _end_soon(self, watch: OpenWatch, place: float) -> None:
        """End a watch at a ``place`` from 0 to 1 in the time in which all end."""
        now = self._clock.seconds()
        first = max(0.0, watch.began_at + _MIN_SECONDS - now)
        watch.ends_at = min(watch.ends_at, now + first + (SPREAD - first) * place)

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
                watch.exchange.write(watch.codec.bookmark(watch.type, watch.version, False))
        if self._watches:
            self._schedule()
