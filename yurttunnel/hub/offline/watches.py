"""Watches served from the cache: the initial objects, and no further events.

A client that starts at version 0, or without a version, gets all objects as ADDED. Any other client
has them already, and gets nothing: it gets the changes in the cloud once that is reachable again.
"""

from __future__ import annotations

import random

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.errors import RequestFailed
from yurttunnel.hub.offline.backpressure import Backpressure
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.lookup import FoundList, Lookup
from yurttunnel.hub.offline.open_watches import OpenWatch, OpenWatches
from yurttunnel.hub.offline.paging import Page
from yurttunnel.hub.offline.reads import check_version
from yurttunnel.hub.request.requests import HubCall, ListOptions


class Watches:
    """Serves watches; the default duration is ``min_seconds`` seconds to twice that."""

    def __init__(
        self,
        clock: IReactorTime,
        lookup: Lookup,
        open_watches: OpenWatches,
        failures: OfflineFailures,
        min_seconds: float,
    ) -> None:
        self._clock = clock
        self._lookup = lookup
        self._open_watches = open_watches
        self._failures = failures
        self.min_seconds = min_seconds

    async def watch(self, call: HubCall, owner: str) -> None:
        """Respond with a watch; raise ``RequestFailed`` before the response has begun."""
        options = call.request.options
        if options.send_initial_events and options.resource_version_match != "NotOlderThan":
            # ValidateListOptions of k8s.io/apimachinery pkg/apis/meta/internalversion/validation.
            raise RequestFailed(
                400, "sendInitialEvents is for resourceVersionMatch=NotOlderThan only"
            )
        if options.send_initial_events or options.resource_version in ("", "0"):
            await self._from_the_beginning(call, owner)
        else:
            await self._from_a_version(call, owner)

    async def _from_a_version(self, call: HubCall, owner: str) -> None:
        options = call.request.options
        codec = self._lookup.sources(call)[0].codec
        type = await self._lookup.type(call, owner) if options.allow_watch_bookmarks else None
        call.exchange.send_head(200, [(b"Content-Type", codec.watch_content_type)])
        self._leave_open(
            OpenWatch(call.exchange, codec, options.resource_version, self._end(call), type)
        )

    async def _from_the_beginning(self, call: HubCall, owner: str) -> None:
        ends_at = self._end(call)
        with self._lookup.reading(call):
            found = await self._lookup.list(call, owner)
            try:
                check_version(call.request.options, found.cached_list.meta, self._failures)
                open_watches = await self._send_objects(call, found, ends_at)
            finally:
                found.cached_list.close()
        self._leave_open(open_watches)

    async def _send_objects(self, call: HubCall, found: FoundList, ends_at: float) -> OpenWatch:
        exchange, options = call.exchange, call.request.options
        source, cached_list = found.source, found.cached_list
        meta, codec = source.meta(cached_list.meta), source.codec
        page = Page(cached_list, ListOptions())
        items = await page.next()
        exchange.send_head(200, [(b"Content-Type", codec.watch_content_type)])
        backpressure = Backpressure(self._clock, exchange)
        backpressure.begin()
        columns = meta.columns
        while items and not backpressure.ended:
            frames = []
            for body in source.bodies(items):
                frames.append(codec.watch_event("ADDED", meta.type, body, columns))
                # Only the first event has columns.
                columns = b""
            exchange.write(b"".join(frames))
            await backpressure.ready()
            items = await page.next()
        if options.send_initial_events:
            exchange.write(codec.bookmark(meta.type, meta.version, True))
        type = meta.type if options.allow_watch_bookmarks else None
        return OpenWatch(exchange, codec, meta.version, ends_at, type)

    def _end(self, call: HubCall) -> float:
        seconds = call.request.options.timeout_seconds or random.uniform(
            self.min_seconds, 2 * self.min_seconds
        )
        return self._clock.seconds() + seconds

    def _leave_open(self, watch: OpenWatch) -> None:
        if watch.exchange.head.method == b"HEAD":
            watch.exchange.finish()
        else:
            self._open_watches.add(watch)
