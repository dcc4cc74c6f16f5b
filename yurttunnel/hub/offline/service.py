"""The offline side: authenticates requests, and dispatches them."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from twisted.application.service import MultiService
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.errors import ApiFailure, RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.request_body import BodyTooLarge
from yurttunnel.hub.cache.interfaces import CacheFailed, ICache
from yurttunnel.hub.filters.interfaces import IFilters
from yurttunnel.hub.interfaces import IConnectivity, IOffline
from yurttunnel.hub.offline.event_sender import EventSender, Send
from yurttunnel.hub.offline.event_store import EventStore
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.lookup import Lookup
from yurttunnel.hub.offline.open_watches import OpenWatches
from yurttunnel.hub.offline.owners import Owners
from yurttunnel.hub.offline.placeholder import PlaceholderTokens
from yurttunnel.hub.offline.reads import Reads
from yurttunnel.hub.offline.token_responder import TokenResponder
from yurttunnel.hub.offline.watches import Watches
from yurttunnel.hub.offline.writes import Writes
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.failures import send_failure
from yurttunnel.hub.request.requests import HubCall
from yurttunnel.metrics import Metric, counter, gauge

MIN_REQUEST_TIMEOUT = 1800.0
"""In seconds (upstream's ``--min-request-timeout``)."""


class OfflineSettings(NamedTuple):
    """``min_watch_seconds`` is in seconds, for watches without ``timeoutSeconds``.

    ``placeholders`` are ``None`` if the kubelet gets no tokens while offline.
    """

    node_name: str
    min_watch_seconds: float = MIN_REQUEST_TIMEOUT
    placeholders: PlaceholderTokens | None = None


@implementer(IOffline)
class Offline(MultiService):
    """Serves requests while offline, and sends stored Events with ``send`` after the outage."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        cache: ICache,
        policy: Policy,
        filters: IFilters,
        connectivity: IConnectivity,
        send: Send,
        settings: OfflineSettings,
    ) -> None:
        super().__init__()
        self._failures = failures = OfflineFailures(settings.node_name)
        placeholders = settings.placeholders
        self._owners = owners = Owners(cache, failures, placeholders)
        lookup = Lookup(clock, cache, policy, filters, failures)
        self._reads = Reads(clock, cache, lookup, failures)
        self.open_watches = OpenWatches(clock, connectivity)
        self.watches = Watches(
            clock, lookup, self.open_watches, failures, settings.min_watch_seconds
        )
        self.events = EventStore(clock, cache, connectivity, failures, placeholders)
        tokens = TokenResponder(cache, policy, owners, failures, placeholders)
        self._writes = Writes(settings.node_name, cache, policy, self.events, tokens, failures)
        self.sender = EventSender(clock, cache, connectivity, send)
        self.sender.setServiceParent(self)
        self.responses: Counter[tuple[str, str]] = Counter()
        """Counts by verb and status since the start; "none" if the client disconnected before."""
        # Requests in progress; an open watch is no longer one of them.
        self._in_progress: set[Deferred[None]] = set()

    def stopService(self) -> Deferred[None]:
        """End all watches, and respond to requests in progress with 503."""
        self.open_watches.end_all()
        for answering in list(self._in_progress):
            answering.cancel()
        stopped: Deferred[None] = super().stopService()
        return stopped

    def respond(self, call: HubCall) -> None:
        call.exchange.on_end(lambda error: self._count(call))
        _ = self._begin(call).addErrback(self._failed, call)

    def respond_if_cached(self, call: HubCall) -> Deferred[bool]:
        return self._begin(call).addCallbacks(
            self._answered, self._not_cached, callbackArgs=(call,), errbackArgs=(call,)
        )

    def _begin(self, call: HubCall) -> Deferred[None]:
        """Begin a response, which is cancelled when the hub stops."""
        answering = Deferred.fromCoroutine(self._answer(call))
        self._in_progress.add(answering)

        def ended(result: Failure | None) -> Failure | None:
            self._in_progress.discard(answering)
            return result

        return answering.addBoth(ended)

    async def _answer(self, call: HubCall) -> None:
        owner = await self._owners.owner(call.caller)
        request = call.request
        if b"impersonate-user" in call.exchange.head.by_name:
            raise self._failures.unavailable("only it can authorize impersonation")
        if request.resource is None:
            if request.verb != "get":
                raise self._failures.cloud_only(request)
            await self._reads.document(call)
        elif request.verb not in ("get", "list", "watch"):
            await self._writes.write(call, owner)
        elif request.subresource not in ("", "status"):
            raise self._failures.cloud_only(request)
        elif request.verb == "get":
            await self._reads.get(call, owner)
        elif request.verb == "list":
            await self._reads.list(call, owner)
        else:
            await self.watches.watch(call, owner)

    def _failed(self, failure: Failure, call: HubCall) -> None:
        # A response that has begun is aborted, because a part must not look like the whole.
        send_failure(call.exchange, self._failure_response(failure))

    def _answered(self, _: None, call: HubCall) -> bool:
        call.exchange.on_end(lambda error: self._count(call))
        return True

    def _not_cached(self, failure: Failure, call: HubCall) -> bool:
        failure_response = self._failure_response(failure)
        if not call.exchange.head_sent:
            return False
        send_failure(call.exchange, failure_response)
        return self._answered(None, call)

    def _failure_response(self, failure: Failure) -> RequestFailed:
        """Return the failure response for an error."""
        error = failure.value
        match error:
            case RequestFailed():
                return error
            case BodyTooLarge():
                return ApiFailure(413, str(error))
            case CacheFailed():
                return self._failures.unavailable(str(error))
            case CancelledError():
                return self._failures.unavailable("the hub is stopping")
            case ExchangeFailed() | TimeoutError():
                # The client has disconnected, or does not read the response.
                return ApiFailure(503, str(error))
        self._log.failure("Defect: a request could not be served offline", failure)
        return ApiFailure(500, "the hub has a defect; its log has more")

    def _count(self, call: HubCall) -> None:
        self.responses[call.request.verb, str(call.exchange.status or "none")] += 1


METRICS: tuple[Metric[Offline], ...] = (
    counter(
        "yurthub_offline_answers",
        "Requests that were served while the API was unreachable, by verb and status. 404 and 503"
        " for get, list and watch: needed data is not cached.",
        lambda offline: sorted(offline.responses.items()),
        "verb",
        "status",
    ),
    gauge(
        "yurthub_offline_watches",
        "Watches that are open while the API is unreachable.",
        lambda offline: len(offline.open_watches),
    ),
    counter(
        "yurthub_offline_events_kept",
        "Events that were stored to be sent when the API is reachable again.",
        lambda offline: offline.events.stored,
    ),
    counter(
        "yurthub_offline_events_sent",
        "Stored Events that the API has accepted.",
        lambda offline: offline.sender.sent,
    ),
    counter(
        "yurthub_offline_events_dropped",
        "Stored Events that the API has rejected, and that are lost.",
        lambda offline: offline.sender.dropped,
    ),
)
