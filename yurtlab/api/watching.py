"""Watches: a streaming response with a line for each change.

The buffer for a client that does not read is limited: beyond :data:`MAX_QUEUED_BYTES` its watch is
aborted, and the client lists again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from zope.interface import implementer

from yurtlab.api.errors import ApiError
from yurtlab.api.negotiation import JSON, Form, encode_json, type_field
from yurtlab.api.options import Selector
from yurtlab.api.resources import Resource
from yurtlab.api.responses import in_form
from yurtlab.api.store import ADDED, DELETED, MODIFIED, Event, Object, Store
from yurtlab.timers import cancel
from yurttunnel.http.interfaces import ExchangeFailed, IExchange

MAX_QUEUED_BYTES = 8 * 1024 * 1024
"""The limit of buffered changes for a client, besides the initial objects."""

BOOKMARK_SECONDS = 60.0
"""The interval of bookmarks for a client that requests them, as in kube-apiserver."""

_BOOKMARK = "BOOKMARK"
_ERROR = "ERROR"
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """The objects to watch, and the form of the events.

    ``since`` is the version after which changes are sent. With ``None`` all existing objects are
    sent first as ADDED, and with ``initial_bookmark`` then a bookmark. ``timeout`` is in seconds.
    """

    kind: Resource
    namespace: str | None
    selector: Selector
    form: Form
    timeout: float
    since: int | None = None
    bookmarks: bool = False
    initial_bookmark: bool = False


@implementer(IPushProducer)
class Watch:
    """A watch, which ends after its timeout, when its client disconnects, or by :meth:`stop`."""

    def __init__(
        self, clock: IReactorTime, store: Store, exchange: IExchange, request: WatchRequest
    ) -> None:
        self._clock = clock
        self._store = store
        self._exchange = exchange
        self._request = request
        self._headers_sent = False
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._max_queued_bytes: float = math.inf
        self._paused = False
        self._ended = False
        self._unsubscribe: Callable[[], None] | None = None
        self._timeout: IDelayedCall | None = None
        self._bookmark: IDelayedCall | None = None

    def start(self) -> None:
        """Begin the response; if changes since the version are lost, send that error and end."""
        request, store = self._request, self._store
        initial = [] if request.since is not None else store.view(request.kind, request.namespace)
        self._exchange.send_head(200, type_field(JSON))
        self._exchange.on_end(self._exchange_ended)
        self._exchange.registerProducer(self, True)
        past: list[Event] = []
        try:
            self._unsubscribe = store.follow(request.kind, past.append, request.since)
        except ApiError as error:
            # As in kube-apiserver: once a watch is authorized, all errors are events.
            self._send_line({"type": _ERROR, "object": error.as_status()})
            self.stop()
            return
        self._unsubscribe()
        for one in filter(request.selector, initial):
            self._send(ADDED, one)
        if request.initial_bookmark:
            self._send_bookmark({_INITIAL_EVENTS_END: "true"})
        for event in past:
            self._changed(event)
        self._max_queued_bytes = self._queued_bytes + MAX_QUEUED_BYTES
        if not self._ended:
            self._unsubscribe = store.follow(request.kind, self._changed)
            self._timeout = self._clock.callLater(request.timeout, self.stop)
            self._schedule_bookmark()

    # -- changes -------------------------------------------------------------------------------

    def _changed(self, event: Event) -> None:
        """Send a change as the selector sees it: an object may begin or cease to be selected."""
        was = event.previous is not None and self._selects(event.previous)
        is_now = event.type != DELETED and self._selects(event.object)
        if is_now:
            self._send(MODIFIED if was else ADDED, event.object)
        elif was:
            self._send(DELETED, event.object)

    def _selects(self, one: Object) -> bool:
        namespace = self._request.namespace
        if namespace and one["metadata"].get("namespace") != namespace:
            return False
        return self._request.selector(one)

    def _send(self, change: str, one: Object) -> None:
        self._send_line({"type": change, "object": self._presented([one], one)})

    def _send_bookmark(self, annotations: dict[str, str] | None = None) -> None:
        kind = self._request.kind
        metadata: Object = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        bookmark = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        self._send_line({"type": _BOOKMARK, "object": self._presented([], bookmark)})

    def _presented(self, rows: list[Object], one: Object) -> Object:
        request, now = self._request, self._clock.seconds()
        headers, self._headers_sent = not self._headers_sent, True
        return in_form(request.kind, one, request.form, now, rows=rows, headers=headers)

    def _send_line(self, event: Object) -> None:
        if self._ended:
            return
        line = encode_json(event) + b"\n"
        if not self._paused:
            self._exchange.write(line)
        elif self._queued_bytes < self._max_queued_bytes:
            self._queued_bytes += len(line)
            self._queue.append(line)
        else:
            self._exchange.abort()

    # -- the client ----------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """Hold changes back: the client does not keep up."""
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        while self._queue and not self._paused:
            line = self._queue.popleft()
            self._queued_bytes -= len(line)
            self._exchange.write(line)

    def stopProducing(self) -> None:
        self._end()

    # -- time, and the end ---------------------------------------------------------------------

    def _schedule_bookmark(self) -> None:
        if self._request.bookmarks and not self._ended:
            self._bookmark = self._clock.callLater(BOOKMARK_SECONDS, self._bookmark_due)

    def _bookmark_due(self) -> None:
        self._send_bookmark()
        self._schedule_bookmark()

    def stop(self) -> None:
        """End the watch now, with a complete response."""
        if self._ended:
            return
        self._end()
        self._exchange.unregisterProducer()
        self._exchange.write(b"".join(self._queue))
        self._exchange.finish()

    def _exchange_ended(self, error: ExchangeFailed | None) -> None:
        self._end()
        self._queue.clear()

    def _end(self) -> None:
        self._ended = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        cancel(self._timeout)
        cancel(self._bookmark)
