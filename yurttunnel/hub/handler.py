"""The decision for each request: reject it, serve it locally, or forward it."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.errors import ApiFailure, RequestFailed
from yurttunnel.http.fields import requested_upgrade
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange, IRequestHandler
from yurttunnel.hub.filters.interfaces import IFilters
from yurttunnel.hub.filters.relist import end_when_changed
from yurttunnel.hub.forwarding.forwarding import Forwarder
from yurttunnel.hub.interfaces import IOffline
from yurttunnel.hub.limits import TOO_MANY, Limits
from yurttunnel.hub.offline.paging import is_of_hub
from yurttunnel.hub.request.accept import forms_of, json_forms
from yurttunnel.hub.request.callers import caller_of
from yurttunnel.hub.request.failures import send_failure
from yurttunnel.hub.request.parsing import parse_request
from yurttunnel.hub.request.requests import ApiRequest, Caller, Form, HubCall
from yurttunnel.hub.upstream.health import Health
from yurttunnel.hub.upstream.kubelet_lease import KubeletLease
from yurttunnel.ops.host_check import is_cross_origin, names_this_machine

EARLY_SECONDS = 0.05
"""How long a request at startup waits for the result of the first health checks. A node that boots
offline is to serve its first response within half a second of the hub's start, and the interpreter
and its imports take most of that. An API server that is further away is awaited only by requests
that the cache cannot serve."""


_NOT_JSON = RequestFailed(406, "filters have to parse this response: accept application/json, too")

_NOT_FILTERED = RequestFailed(
    400, "filters apply to this watch, which they cannot parse over WebSocket: do not upgrade"
)

_NOT_CONTINUED = RequestFailed(
    410, "the first page of the list was served from the cache: start the list again"
)

_STOPPING = ApiFailure(503, "the hub is stopping: try again later", retry_after=1)

_DEFECT = ApiFailure(500, "the hub has a defect; its log has more")

_log = Logger()


class Hub:
    """Handles requests in the same way for all listeners; its creator must close it."""

    def __init__(
        self,
        clock: IReactorTime,
        health: Health,
        forwarder: Forwarder,
        offline: IOffline,
        filters: IFilters,
        kubelet_lease: KubeletLease,
        limits: Limits,
    ) -> None:
        self._health = health
        self._forwarder = forwarder
        self._offline = offline
        self._filters = filters
        self._kubelet_lease = kubelet_lease
        self._limits = limits
        # Requests that arrived before the first health checks were complete.
        self._early: Deadlines[_EarlyCall] = Deadlines(clock, EARLY_SECONDS, self._serve_early)
        # The early requests that cannot be served from the cache wait for the first health checks,
        # which have a timeout: a client takes an object for deleted after a 404.
        self._uncached: dict[_EarlyCall, None] = {}
        self._watches: set[IExchange] = set()
        health.on_known(self._connectivity_known)

    def handle(self, exchange: IExchange, local: bool) -> None:
        """Handle a request; a request that is not ``local`` needs credentials of its own."""
        try:
            # Most clients send the same head many times, so the result is stored with the head.
            parsed = exchange.head.derived(_parse_local if local else _parse_from_pod)
            share_holder = None if local else getattr(exchange.transport.getPeer(), "host", "")
            call = HubCall(exchange, *parsed, share_holder)
        except RequestFailed as error:
            send_failure(exchange, error)
            return
        if self._kubelet_lease.matches(call):
            self._kubelet_lease.respond(call)
            return
        if not self._limits.admit(call):
            send_failure(exchange, TOO_MANY)
            return
        if call.request.verb == "watch":
            self._watches.add(exchange)
            exchange.on_end(lambda _: self._watches.discard(exchange))
        if self._health.known:
            self._decide(call)
        else:
            early = _EarlyCall(call)
            self._early.add(early)
            exchange.on_end(lambda _: self._ended(early))

    def end_watches(self) -> None:
        """End all watches, as the API server does from time to time, because the hub is stopping.

        A watch that was rejected ends by itself.
        """
        for exchange in tuple(self._watches):
            if not exchange.head_sent:
                send_failure(exchange, _STOPPING)
            elif exchange.status < 400:
                exchange.finish()

    def close(self) -> None:
        """Stop the timer."""
        self._early.stop()

    def _connectivity_known(self) -> None:
        """Handle the requests that arrived early."""
        # The requests that cannot be served from the cache have waited longest.
        waiting = (*self._uncached, *self._early.items())
        self._uncached.clear()
        for each in waiting:
            self._early.discard(each)
            self._decide_early(each)

    def _ended(self, early: _EarlyCall) -> None:
        early.ended = True
        self._early.discard(early)
        self._uncached.pop(early, None)

    def _serve_early(self, early: _EarlyCall) -> None:
        """Serve an early request from the cache, if the requested data is cached."""
        if early.call.request.verb not in ("get", "list"):
            self._uncached[early] = None
            return
        # This Deferred never fails.
        _ = self._offline.respond_if_cached(early.call).addCallback(self._served_early, early)

    def _served_early(self, is_cached: bool, early: _EarlyCall) -> None:
        if is_cached or early.ended:
            return
        if self._health.known:
            self._decide_early(early)
        else:
            self._uncached[early] = None

    def _decide_early(self, early: _EarlyCall) -> None:
        # The connection does not catch exceptions any more at this point.
        try:
            self._decide(early.call)
        except Exception:
            _log.failure("Defect: a request during startup could not be handled")
            send_failure(early.call.exchange, _DEFECT)

    def _decide(self, call: HubCall) -> None:
        change = self._filters.change_for(call.caller, call.request)
        if change is not None and not json_forms(call.forms):
            send_failure(call.exchange, _NOT_JSON)
            return
        if call.request.verb == "watch":
            if change is not None and requested_upgrade(call.exchange.head) is not None:
                send_failure(call.exchange, _NOT_FILTERED)
                return
            end_when_changed(self._filters, call, change is not None)
        if not self._health.online:
            self._offline.respond(call)
        elif (token := call.request.options.continue_token) and is_of_hub(token):
            send_failure(call.exchange, _NOT_CONTINUED)
        else:
            self._forwarder.forward(call, change)


class _EarlyCall:
    """A request that arrived early; compared by identity."""

    __slots__ = ("call", "ended")

    def __init__(self, call: HubCall) -> None:
        self.call = call
        self.ended = False


@implementer(IRequestHandler)
class ListenerHandler:
    """The request handler of a listener; a ``local`` one accepts only clients of this machine."""

    def __init__(self, hub: Hub, local: bool) -> None:
        self._hub = hub
        self._local = local

    def request_received(self, exchange: IExchange) -> None:
        self._hub.handle(exchange, self._local)


_Parsed = tuple[ApiRequest, Caller, tuple[Form, ...]]
"""The parsed head: the request, its caller, and the accepted forms."""


def _parse_local(head: RequestHead) -> _Parsed:
    reject_web_pages(head)
    return _parse(head, True)


def _parse_from_pod(head: RequestHead) -> _Parsed:
    return _parse(head, False)


def _parse(head: RequestHead, local: bool) -> _Parsed:
    if head.method == b"CONNECT":
        raise RequestFailed(405, "this port accepts requests to the Kubernetes API, not CONNECT")
    caller = caller_of(head, local)
    if not local and not caller.token:
        raise RequestFailed(
            401,
            "this address of the hub accepts only requests with a bearer token, such as that of"
            " a service account",
        )
    return parse_request(head), caller, forms_of(head)


def reject_web_pages(head: RequestHead) -> None:
    """Raise ``RequestFailed`` (403, 421) for a request that may come from a web page.

    A request on the loopback port without a token has the node's identity. A web page in a browser
    of this machine can send requests to 127.0.0.1, or point its own host name to it (DNS
    rebinding). ``Origin``, ``Sec-Fetch-Site`` and ``Host`` reveal this, and no page can choose
    their values.
    """
    by_name = head.by_name
    hosts = by_name.get(b"host", [])
    sites, origins = by_name.get(b"sec-fetch-site", ()), by_name.get(b"origin", ())
    if (sites or origins) and is_cross_origin(b"".join(hosts), sites, origins):
        raise RequestFailed(403, "this port rejects requests from web pages")
    if not all(map(names_this_machine, hosts)):
        raise RequestFailed(
            421,
            "Host is not a name of this machine, as in requests from web pages: use an IP"
            " address or localhost as Host",
        )
