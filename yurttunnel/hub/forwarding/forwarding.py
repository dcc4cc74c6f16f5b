"""The forwarding of a request to one API server after another, else to the offline side.

=============  ===================================================================================
state          meaning and next state
=============  ===================================================================================
``TRYING``     A server has the request. If that fails before the response has begun, another
               healthy server is tried, if the request was not executed or is safe to repeat.
``RESPONDED``  The response has begun, or was a failure. A response that breaks now is aborted.
``OFFLINE``    No server is left, or the client does not wait longer: the offline side responds.
=============  ===================================================================================

A slow response has its server checked. If the server is unhealthy, its connections are closed, so
all requests that wait for it return here; if it is only slow, they continue to wait.
"""

from __future__ import annotations

import enum
import math
import re
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http import relay
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.client_exchange import ClientExchange
from yurttunnel.http.connection import declared_length
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.errors import ApiFailure, RequestFailed
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead, ResponseHead
from yurttunnel.http.interfaces import ExchangeFailed, IBodySource
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.forwarding.cached_response import CachedResponse
from yurttunnel.hub.forwarding.cached_watches import CachedWatches
from yurttunnel.hub.forwarding.repeatable_body import RepeatableBody
from yurttunnel.hub.forwarding.responses import DELETIONS, ResponseHandler, ResponsePlan
from yurttunnel.hub.forwarding.token_reviews import TokenReviews
from yurttunnel.hub.interfaces import IOffline
from yurttunnel.hub.request.accept import json_only
from yurttunnel.hub.request.dry_run import may_be_dry_run
from yurttunnel.hub.request.failures import send_failure
from yurttunnel.hub.request.requests import ApiRequest, HubCall
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.health import Health
from yurttunnel.hub.upstream.servers import Balancer, Server
from yurttunnel.ops.flags import duration
from yurttunnel.ops.log import RateLimitedLog

SLOW_SECONDS = 2.0
"""How long a response may take before its server is checked; a check takes at most two seconds."""

RESPONSE_TIMEOUT = 90.0
"""The timeout for the head of a response that is not long-running; kube-apiserver's is 60 s
(``--request-timeout``)."""

CLIENT_TIMEOUT_MARGIN = 2.0
"""How long before the client's timeout a request is served from the cache (upstream's
``WithRequestTimeout`` of pkg/yurthub/proxy/util)."""

MAX_REPEATABLE_BODY = 256 * 1024
"""Maximum size of a request body that is stored for another attempt, in bytes."""

_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
_NOT_FORWARDED = frozenset({b"host", b"edge-cache"})
_CACHEABLE_VERBS = frozenset({"get", "list"})
_READ_VERBS = frozenset({"get", "list", "watch"})
_TIMEOUT = re.compile(rb"[?&]timeout=([0-9.a-z]{1,32})(?:&|$)")

_UNREACHABLE = ApiFailure(503, "no API server can be reached: try again later", retry_after=10)

_log = Logger()


class Forwarder:
    """Forwards requests; its creator must close it."""

    def __init__(
        self,
        clock: IReactorTime,
        connections: Connections,
        balancer: Balancer,
        health: Health,
        responses: ResponseHandler,
        cached_watches: CachedWatches,
        tokens: TokenReviews,
        offline: IOffline,
    ) -> None:
        self.clock = clock
        self.connections = connections
        self.balancer = balancer
        self.health = health
        self.responses = responses
        self.cached_watches = cached_watches
        self.tokens = tokens
        self.offline = offline
        settings = relay.RelaySettings(response_timeout=RESPONSE_TIMEOUT)
        self.relay = relay.Relay(clock, settings)
        self.limited = RateLimitedLog(clock, _log)
        self.slow: Deadlines[Forwarding] = Deadlines(clock, SLOW_SECONDS, Forwarding.is_slow)
        # At most one request, to which no server has responded.
        self.unanswered: Deadlines[Forwarding] = Deadlines(
            clock, health.detection_seconds, Forwarding.is_unanswered
        )
        health.on_change(self._connectivity_changed)

    def forward(self, call: HubCall, change: Change | None = None) -> None:
        """Forward ``call``, and respond with the API's response after ``change``.

        A response to be cached waits until the owner of its token is known, once for each token.
        """
        token = call.caller.token
        if not self.responses.caches(call):
            self._begin(call, change, None)
        elif not token:
            self._begin(call, change, "")
        else:
            known = self.tokens.owner(token, call.share_holder).addCallback(
                lambda owner: self._begin(call, change, owner or None)
            )
            _ = known.addErrback(self._defect, call)

    def _begin(self, call: HubCall, change: Change | None, owner: str | None) -> None:
        if self.cached_watches.begin(call, change is not None):
            Forwarding(self, call, change, owner).begin()

    def _defect(self, failure: Failure, call: HubCall) -> None:
        _log.failure("Defect: a request could not be forwarded", failure)
        call.exchange.abort()

    def _connectivity_changed(self, online: bool) -> None:
        for forwarding in self.unanswered.items():
            # The servers were found unhealthy, which is logged.
            self.unanswered.discard(forwarding)

    def close(self) -> None:
        """Stop the timers; the connections are closed by their owner."""
        self.tokens.close()
        self.relay.close()
        self.slow.stop()
        self.unanswered.stop()


class _State(enum.Enum):
    TRYING = enum.auto()
    RESPONDED = enum.auto()
    OFFLINE = enum.auto()


# Unpacked once: an attribute access to an enum costs as much as a function call.
_TRYING, _RESPONDED, _OFFLINE = _State


class Forwarding(relay.Forwarding):
    """A single request, which is started again for each server."""

    _body: RepeatableBody | None = None
    _state = _TRYING
    _server: Server | None = None
    _tried: tuple[Server, ...] = ()
    # Whether no server can have received any part of the current attempt.
    _unsent = True
    # Whether the response is a watch, which does not end by itself.
    _is_watch = False
    _client_timer: IDelayedCall | None = None
    # Why the last attempt has failed.
    _failure = ""

    def __init__(
        self, forwarder: Forwarder, call: HubCall, change: Change | None, owner: str | None
    ) -> None:
        super().__init__(forwarder.relay, call.exchange, call.request.long_running)
        self._forwarder = forwarder
        self._call = call
        self._plan: ResponsePlan | None = forwarder.responses.plan(call, change, owner)
        self._is_filtered = change is not None
        if call.exchange.has_body:
            self._body = RepeatableBody(call.exchange, MAX_REPEATABLE_BODY)

    def begin(self) -> None:
        """Try the first server, and serve the request from the cache before a client's timeout."""
        if self._plan is not None and self._plan.client:
            seconds = client_timeout(self._call)
            if seconds is not None:
                self._client_timer = self._forwarder.clock.callLater(
                    seconds - CLIENT_TIMEOUT_MARGIN, self._client_timeout_near
                )
        super().begin()

    # -- attempts ------------------------------------------------------------------------------

    def start(self) -> None:
        """Try the next server."""
        forwarder = self._forwarder
        server = forwarder.balancer.pick(self._tried)
        if server is None:
            self._no_server_left()
            return
        self._server = self.origin = server
        self._tried = (*self._tried, server)
        self._unsent = False
        self.request = self._request_to(server)
        forwarder.slow.add(self)
        super().start()

    def _request_to(self, server: Server) -> relay.ForwardedRequest:
        """Return the request for a server."""
        head = self.exchange.head
        made, kind = head.derived(_built_requests), (server, self._is_filtered)
        found = made.get(kind)
        if found is None:
            fields = [
                (b"Host", server.authority),
                *_forwarded_fields(head.fields, self._is_filtered),
            ]
            found = made[kind] = relay.ForwardedRequest(head.method, head.target, fields)
        return found

    def acquire(
        self, *, fresh: bool, upload: bool, upgrade: bool
    ) -> Deferred[ClientConnection] | ClientConnection:
        """Return a connection to the server of the current attempt."""
        server = self._server
        assert server is not None
        if fresh and not server.healthy:
            # The connection was closed because the server became unhealthy.
            return fail(RequestFailed(502, f"{server} is lost"))
        caller = self._call.caller
        taken = self._forwarder.connections.acquire(
            server,
            caller.local and not caller.token,
            fresh=fresh,
            long_running=self.long_running,
            upload=upload,
            upgrade=upgrade,
            caller=self._call.share_holder,
        )
        if isinstance(taken, ClientConnection):
            return taken
        return taken.addErrback(self._not_connected, server)

    def _not_connected(self, failure: Failure, server: Server) -> Failure:
        """Record that nothing was sent to an unhealthy server, such as a request that waited in a
        queue.

        The same applies if a new connection was closed at once. A healthy server may be overloaded:
        then the client gets the failure, and has to retry.
        """
        if not server.healthy or failure.check(ExchangeFailed):
            self._unsent = True
        return failure

    def describe(self, failure: Failure) -> tuple[int, str]:
        self._unsent = True
        error = failure.value
        if isinstance(error, RequestFailed):
            return error.status, error.text
        if not failure.check(CancelledError):
            _log.failure("Defect: connecting to {server} failed", failure, server=self._server)
        return 502, f"{self._server}: the connection attempt was cancelled"

    def is_slow(self) -> None:
        """Check the server that is slow; if it is healthy, continue to wait.

        The others, the next candidates, are checked as well: if the node has lost its network, none
        responds.
        """
        self._forwarder.health.suspect_all()
        if not self.long_running:
            self._forwarder.slow.add(self)

    def fail(self, status: int, text: str) -> None:
        """Try the next server: the attempt has failed; or send the error response."""
        is_of_server = self._state is _TRYING and status >= 502
        if is_of_server:
            self._forwarder.slow.discard(self)
            self.stop()
            self._failure = text
            if self._server is not None:
                self._forwarder.health.suspect(self._server)
        if is_of_server and self._is_repeatable():
            self.start()
        else:
            self._response_begins(0)
            send_failure(self.exchange, RequestFailed(status, text))

    def _is_repeatable(self) -> bool:
        """Whether the request may be sent again, or served as if it had never been sent.

        A GET that upgrades to WebSocket may execute a command in a container.
        """
        if self._body is not None:
            return self._unsent and self._body.repeatable
        is_safe = self.request.method in _SAFE and self._upgrade is None
        return self._unsent or is_safe

    def deliver_body(self) -> None:
        """Deliver the request body, from the start for each attempt."""
        assert self._body is not None
        self._body.deliver(self)

    def pause_body(self) -> None:
        if self._body is not None:
            self._body.paused = True
        super().pause_body()

    # -- the response --------------------------------------------------------------------------

    def _response_begins(self, status: int) -> None:
        """Record that the API has responded; the status is 0 for failures of the hub."""
        self._state = _RESPONDED
        self._forwarder.slow.discard(self)
        if self._client_timer is not None:
            self._client_timer.cancel()
            self._client_timer = None
        if self._call.caller.token and status:
            _report_token(self._forwarder.tokens, self._call, status)

    def respond(self, head: ResponseHead, upstream: ClientExchange) -> None:
        """Send the response, which has arrived, to the client, and cache or change it."""
        status = head.status
        fields: Fields = head.end_to_end()
        source: IBodySource = upstream
        self._response_begins(status)
        if status >= 502 and self._server is not None:
            self._forwarder.health.suspect(self._server)
        if self._plan is not None:
            if self._call.request.verb in DELETIONS and self._is_dry_deletion():
                self._plan.client = ""
            fields, source = self._forwarder.responses.body(
                self._plan, head, fields, upstream, self.exchange.abort
            )
        if self._call.request.verb == "watch":
            self._is_watch = status < 400 and declared_length(fields) is None
        self.exchange.respond_from(status, fields, source, head.reason)

    def _is_dry_deletion(self) -> bool:
        """Whether it may be a dry run; clients request it in the body of a DELETE."""
        if self._body is None:
            return False
        options = self._body.whole
        return options is None or may_be_dry_run(options)

    def switch(self, head: ResponseHead) -> None:
        self._response_begins(head.status)
        super().switch(head)

    def abort(self) -> None:
        """Abort the exchange: the API server has aborted the response.

        A watch is ended normally instead, as the API ends each watch from time to time, and the
        client resumes after its last event. The response of a rejected watch has no events, and a
        response with a length is not a watch.
        """
        if self._server is not None:
            self._forwarder.health.suspect(self._server)
        if self._is_watch:
            self.exchange.finish()
        else:
            self.exchange.abort()

    def client_ended(self, error: ExchangeFailed | None) -> None:
        """Stop: the exchange with the client has ended."""
        if self._state is _TRYING:
            self._response_begins(0)
        super().client_ended(error)
        plan, self._plan = self._plan, None
        # An aborted watch also ends without an error. A list may still be waiting to be parsed.
        is_left = error is not None or self._call.request.verb == "watch"
        if is_left and plan is not None and plan.cacher is not None:
            plan.cacher.abandon()

    # -- offline -------------------------------------------------------------------------------

    def _client_timeout_near(self) -> None:
        self._client_timer = None
        # If the data is not cached, keep waiting: only the API knows whether the object exists.
        _ = self._respond_if_cached()

    def _respond_if_cached(self) -> Deferred[bool]:
        """Serve the request from the cache, if the data is cached and the API has not responded."""
        exchange = CachedResponse(self.exchange, self._abandon_servers)
        return self._forwarder.offline.respond_if_cached(replace(self._call, exchange=exchange))

    def _abandon_servers(self) -> bool:
        """Abandon the API servers, if none has responded; return whether this was done."""
        if self._state is not _TRYING:
            return False
        self.stop()
        self._response_begins(0)
        self._state = _OFFLINE
        return True

    def _no_server_left(self) -> None:
        """Serve the request locally; never a 404 while the cloud may be reachable."""
        is_online = self._forwarder.health.online
        if is_online and self._failure and not self._forwarder.unanswered:
            self._forwarder.unanswered.add(self)
        if is_online and self._call.request.verb in _CACHEABLE_VERBS:
            _ = self._respond_if_cached().addCallback(self._send_unreachable)
        else:
            self._serve_offline()

    def is_unanswered(self) -> None:
        """Log that no server has responded, though the checks since then were successful."""
        self._forwarder.limited.warn(
            "no API server has responded to {component} ({verb} {path}), although they are"
            " healthy; the cache responds if it can: {failure}",
            component=self._call.caller.component,
            verb=self._call.request.verb,
            path=self._call.request.path,
            failure=self._failure,
        )

    def _send_unreachable(self, responded: bool) -> None:
        if not responded and self._abandon_servers():
            send_failure(self.exchange, _UNREACHABLE)

    def _serve_offline(self) -> None:
        """Let the offline side respond."""
        self._abandon_servers()
        call = self._call
        if self._body is not None and self._body.begun:
            body = self._body.whole
            if body is None:
                send_failure(self.exchange, _UNREACHABLE)
                return
            call = replace(call, body=body)
        self._forwarder.offline.respond(call)


def _report_token(tokens: TokenReviews, call: HubCall, status: int) -> None:
    """Record what the status of a response reveals about the token of the request."""
    if status == HTTPStatus.UNAUTHORIZED:
        report = tokens.token_rejected if _only_api_responds(call.request) else tokens.token_doubted
        report(call.caller.token, call.share_holder)
    elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
        tokens.response_received(call.caller.token, call.share_holder)


def _only_api_responds(request: ApiRequest) -> bool:
    """Return whether a 401 for the request can only come from the API server itself.

    Subresources and aggregated API groups return responses of other servers, and admission webhooks
    may reject writes with any status.
    """
    resource = request.resource
    return (
        resource is not None
        and not resource.group
        and not request.subresource
        and request.verb in _READ_VERBS
    )


def client_timeout(call: HubCall) -> float | None:
    """Return the client's timeout for a get or a list in seconds, ``None`` if it is unknown.

    The timeout is longer than :data:`CLIENT_TIMEOUT_MARGIN`; for shorter ones there is no time to
    respond.
    """
    if call.request.verb not in _CACHEABLE_VERBS:
        return None
    timeout, options = call.exchange.head.derived(_timeout), call.request.options
    seconds = timeout if options.timeout_seconds is None else min(timeout, options.timeout_seconds)
    return seconds if CLIENT_TIMEOUT_MARGIN < seconds < math.inf else None


def _timeout(head: RequestHead) -> float:
    """Return the ``timeout`` of the query in seconds, as client-go sends it; else infinity."""
    if b"timeout=" in head.target and (found := _TIMEOUT.search(head.target)) is not None:
        # The API rejects an invalid duration.
        with suppress(ValueError):
            return duration(found[1].decode("ascii"))
    return math.inf


def _built_requests(head: RequestHead) -> dict[tuple[Server, bool], relay.ForwardedRequest]:
    """Return the requests built from a head, by server and whether responses are changed."""
    return {}


def _forwarded_fields(fields: Fields, changed: bool) -> list[tuple[bytes, bytes]]:
    """Return the header fields that are forwarded to the API, except ``Host``.

    For a response that is to be ``changed``, uncompressed JSON is requested.
    """
    passed = [field for field in fields if field[0].lower() not in _NOT_FORWARDED]
    if not changed:
        return passed
    return [field for field in json_only(passed) if field[0].lower() != b"accept-encoding"]
