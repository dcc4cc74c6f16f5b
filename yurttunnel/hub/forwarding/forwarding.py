"""A request on its way to the API: on one server, then on the next, else it is answered here.

============  ====================================================================================
state         what it means, and what comes next
============  ====================================================================================
``TRYING``    A server has been asked. If that fails before the answer has begun, another healthy
              one is tried when the request cannot have been carried out, or may be twice.
``ANSWERED``  The answer has begun, or it was a failure. What breaks off now is broken off.
``LEFT``      No server is left, or its client does not wait for it: the offline side answers.
============  ====================================================================================

An answer that lets wait has its server checked. If it is lost, its connections are closed, and with
them all that wait there come here again; if it is only slow, it is waited for.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IProtocol, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.connection import declared_length
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.delegated_exchange import DelegatedExchange
from yurttunnel.http.errors import ApiFailure, RequestFailed
from yurttunnel.http.fields import Fields, requested_upgrade
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IBodySource
from yurttunnel.http.relay import ForwardedRequest, Relay, RelaySettings
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.forwarding.answers import Answers, Plan
from yurttunnel.hub.forwarding.kept_answer import KeptAnswer
from yurttunnel.hub.forwarding.kept_watches import KeptWatches
from yurttunnel.hub.forwarding.repeatable_body import RepeatableBody
from yurttunnel.hub.forwarding.seen_tokens import SeenTokens
from yurttunnel.hub.interfaces import IOffline
from yurttunnel.hub.request.accept import json_only
from yurttunnel.hub.request.dry_run import may_be_dry_run
from yurttunnel.hub.request.failures import tell
from yurttunnel.hub.request.requests import ApiRequest, HubCall
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.health import Health
from yurttunnel.hub.upstream.servers import Balancer, Server
from yurttunnel.ops.flags import duration

SLOW_SECONDS = 2.0
"""How long an answer lets wait before its server is checked, which takes two seconds at most."""

ANSWER_SECONDS = 90.0
"""For an answer to begin that does not last; kube-apiserver gives up after 60 s
(``--request-timeout``)."""

EARLIER_SECONDS = 2.0
"""How long before its client gives up a request is answered with what is kept (upstream's
``WithRequestTimeout`` of pkg/yurthub/proxy/util)."""

MOST_REPEATED = 256 * 1024
"""Bytes of a request's body that are kept for another server."""

_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
_NOT_PASSED_ON = frozenset({b"host", b"edge-cache"})
_KEPT_VERBS = frozenset({"get", "list"})
_READING = frozenset({"get", "list", "watch"})
_TIMEOUT = re.compile(rb"[?&]timeout=([0-9.a-z]{1,32})(?:&|$)")

_UNREACHABLE = ApiFailure(503, "no API server can be reached: try again later", retry_after=10)

_log = Logger()


class Forwarder:
    """Forwards requests; whoever made it closes it."""

    def __init__(
        self,
        clock: IReactorTime,
        connections: Connections,
        balancer: Balancer,
        health: Health,
        answers: Answers,
        kept_watches: KeptWatches,
        tokens: SeenTokens,
        offline: IOffline,
    ) -> None:
        self.clock = clock
        self.connections = connections
        self.balancer = balancer
        self.health = health
        self.answers = answers
        self.kept_watches = kept_watches
        self.tokens = tokens
        self.offline = offline
        self.relay = Relay(clock, RelaySettings(response_timeout=ANSWER_SECONDS))
        self.slow: Deadlines[Forwarding] = Deadlines(clock, SLOW_SECONDS, Forwarding.is_slow)

    def forward(self, call: HubCall, change: Change | None = None) -> None:
        """Answer ``call`` with what the API answers, after ``change``.

        What is to be kept waits until it is known for whom, which is once for each token.
        """
        if not self.kept_watches.begin(call, change is not None):
            return
        token = call.caller.token
        if not self.answers.keeps(call):
            Forwarding(self, call, change, None).begin()
        elif not token:
            Forwarding(self, call, change, "").begin()
        else:
            asked = self.tokens.owner(token, call.holder).addCallback(
                lambda owner: Forwarding(self, call, change, owner or None).begin()
            )
            _ = asked.addErrback(self._defect, call)

    def _defect(self, failure: Failure, call: HubCall) -> None:
        _log.failure("Defect: a request could not be forwarded", failure)
        call.exchange.abort()

    def close(self) -> None:
        """Stop the timers; the connections are closed by whoever has them."""
        self.tokens.close()
        self.relay.close()
        self.slow.stop()


class _State(enum.Enum):
    TRYING = enum.auto()
    ANSWERED = enum.auto()
    LEFT = enum.auto()


class Forwarding(DelegatedExchange):
    """One request; to the relay it is the exchange of one attempt after the other."""

    def __init__(
        self, forwarder: Forwarder, call: HubCall, change: Change | None, owner: str | None
    ) -> None:
        super().__init__(call.exchange)
        self._forwarder = forwarder
        self._call = call
        self._plan: Plan | None = forwarder.answers.plan(call, change, owner)
        self._changes = change is not None
        self._lasting = call.request.lasts
        self._body: RepeatableBody | None = None
        if self.has_body:
            self._body = RepeatableBody(call.exchange, MOST_REPEATED)
        self._state = _State.TRYING
        self._server: Server | None = None
        self._tried: tuple[Server, ...] = ()
        # No server can have seen anything of the present attempt.
        self._unsent = True
        self._attempt_ended: Callable[[ExchangeFailed | None], object] | None = None
        self._over = False
        # The answer is a watch, which has no end of its own.
        self._is_watch = False
        self._impatience: IDelayedCall | None = None

    def begin(self) -> None:
        """Try the first server."""
        self.exchange.on_end(self._exchange_ended)
        if self._over:
            return
        if self._plan is not None and self._plan.client:
            self._bound_time()
        self._try()

    # -- attempts ------------------------------------------------------------------------------

    def _try(self) -> None:
        forwarder = self._forwarder
        server = forwarder.balancer.pick(self._tried)
        if server is None:
            self._none_is_left()
            return
        self._server = server
        self._tried = (*self._tried, server)
        self._unsent = False
        forwarder.slow.add(self)
        forwarder.relay.forward(
            self,
            self._acquire,
            self._request_to(server),
            self._describe,
            origin=server,
            patient=self._lasting,
        )

    def _request_to(self, server: Server) -> ForwardedRequest:
        """Return what a server is sent."""
        head = self.head
        made, kind = head.derived(_made_of), (server, self._changes)
        found = made.get(kind)
        if found is None:
            fields = [(b"Host", server.authority), *_passed_on(head.fields, self._changes)]
            found = made[kind] = ForwardedRequest(head.method, head.target, fields)
        return found

    def _acquire(
        self, *, fresh: bool, upload: bool, upgrade: bool
    ) -> Deferred[ClientConnection] | ClientConnection:
        server = self._server
        assert server is not None
        if fresh and not server.healthy:
            # The connection that failed was closed since the server is lost.
            return fail(RequestFailed(502, f"{server} is lost"))
        caller = self._call.caller
        taken = self._forwarder.connections.take(
            server,
            caller.local and not caller.token,
            fresh=fresh,
            lasting=self._lasting,
            upload=upload,
            upgrade=upgrade,
            caller=self._call.holder,
        )
        if isinstance(taken, ClientConnection):
            return taken
        return taken.addErrback(self._not_taken, server)

    def _not_taken(self, failure: Failure, server: Server) -> Failure:
        """Note that nothing was sent to a server that is lost, as when it was waited for in line.

        So it is where the connection that was made was closed at once. One that is well may only
        have too much to do: then the client is told to come again.
        """
        if not server.healthy or failure.check(ExchangeFailed):
            self._unsent = True
        return failure

    def _describe(self, failure: Failure) -> tuple[int, str]:
        self._unsent = True
        error = failure.value
        if isinstance(error, RequestFailed):
            return error.status, error.text
        if not failure.check(CancelledError):
            _log.failure("Defect: connecting to {server} failed", failure, server=self._server)
        return 502, f"{self._server}: the connection was given up"

    def on_end(self, callback: Callable[[ExchangeFailed | None], object]) -> None:
        """See ``IExchange``; the relay's end is that of the attempt."""
        self._attempt_ended = callback

    def _end_attempt(self) -> None:
        self._forwarder.slow.discard(self)
        ended, self._attempt_ended = self._attempt_ended, None
        if ended is not None:
            ended(None)

    def is_slow(self) -> None:
        """Have the server checked that lets wait; if it is well, it is waited for.

        With it the others, to which the request would go: when the node is cut off, all are silent.
        """
        self._forwarder.health.suspect_all()
        if not self._lasting:
            self._forwarder.slow.add(self)

    def fail(self, status: int, text: str) -> None:
        """See ``IExchange``: the attempt has failed."""
        if self._state is not _State.TRYING or status < 502:
            self._answer_begins(0)
            tell(self.exchange, RequestFailed(status, text))
            return
        server = self._server
        self._end_attempt()
        if server is not None:
            self._forwarder.health.suspect(server)
        if self._is_repeatable():
            self._try()
        else:
            self._answer_begins(0)
            tell(self.exchange, RequestFailed(status, text))

    def _is_repeatable(self) -> bool:
        """Whether the request may be sent again, or be answered as if it had never been sent.

        By WebSocket a command is run in a container with GET.
        """
        if self._body is not None:
            return self._unsent and self._body.repeatable
        is_safe = self.head.method in _SAFE and requested_upgrade(self.head) is None
        return self._unsent or is_safe

    def deliver_body(self, sink: IBodySink) -> None:
        """See ``IBodySource``; for each attempt anew."""
        assert self._body is not None
        self._body.deliver(sink)

    def pauseProducing(self) -> None:
        """See ``IPushProducer``."""
        if self._body is not None:
            self._body.paused = True
        self.exchange.pauseProducing()

    # -- the answer ----------------------------------------------------------------------------

    def _answer_begins(self, status: int) -> None:
        """Note that the API has answered; 0 is for a failure of ours."""
        self._state = _State.ANSWERED
        self._forwarder.slow.discard(self)
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None
        if self._call.caller.token and status:
            _tell_of_token(self._forwarder.tokens, self._call, status)

    def respond_from(
        self, status: int, fields: Fields, source: IBodySource, reason: bytes = b""
    ) -> None:
        """See ``IExchange``: the answer has come."""
        self._answer_begins(status)
        if status >= 502 and self._server is not None:
            self._forwarder.health.suspect(self._server)
        if self._plan is not None:
            if self._call.request.verb == "delete" and self._is_dry_deletion():
                self._plan.client = ""
            fields, source = self._forwarder.answers.body(
                self._plan, status, fields, source, self.exchange.abort
            )
        if self._call.request.verb == "watch":
            self._is_watch = status < 400 and declared_length(fields) is None
        self.exchange.respond_from(status, fields, source, reason)

    def _is_dry_deletion(self) -> bool:
        """Whether nothing may have been deleted; clients say so in the body of a DELETE."""
        if self._body is None:
            return False
        options = self._body.whole
        return options is None or may_be_dry_run(options)

    def switch(self, status: int, reason: bytes, fields: Fields, protocol: IProtocol) -> None:
        """See ``IExchange``."""
        self._answer_begins(status)
        self.exchange.switch(status, reason, fields, protocol)

    def abort(self) -> None:
        """See ``IExchange``: the answer has broken off.

        A watch ends in good order, as the API ends each of them from time to time: its client goes
        on from the last event that it has seen. What says why one was refused is no event, and what
        has a length no watch.
        """
        if self._server is not None:
            self._forwarder.health.suspect(self._server)
        if self._is_watch:
            self.exchange.finish()
        else:
            self.exchange.abort()

    def _exchange_ended(self, error: ExchangeFailed | None) -> None:
        self._over = True
        if self._state is _State.TRYING:
            self._answer_begins(0)
        self._end_attempt()
        plan, self._plan = self._plan, None
        # A watch that broke off ends in good order, too.
        # A list may still be read behind its client.
        is_left = error is not None or self._call.request.verb == "watch"
        if is_left and plan is not None and plan.keeper is not None:
            plan.keeper.abandon()

    # -- without the API -----------------------------------------------------------------------

    def _bound_time(self) -> None:
        """Have what can be answered here be answered before the client gives up."""
        seconds = client_patience(self._call)
        if seconds is not None:
            self._impatience = self._forwarder.clock.callLater(
                seconds - EARLIER_SECONDS, self._client_is_impatient
            )

    def _client_is_impatient(self) -> None:
        self._impatience = None
        # What is not kept is waited for on: the API alone knows whether there is no such object.
        _ = self._answer_if_kept()

    def _answer_if_kept(self) -> Deferred[bool]:
        """Have the request answered with what is kept, if it is before the API answers."""
        exchange = KeptAnswer(self.exchange, self._left)
        return self._forwarder.offline.answer_if_kept(replace(self._call, exchange=exchange))

    def _left(self) -> bool:
        """Leave the API, if it has not answered; return whether that is so."""
        if self._state is not _State.TRYING:
            return False
        self._end_attempt()
        self._answer_begins(0)
        self._state = _State.LEFT
        return True

    def _none_is_left(self) -> None:
        """Have the request answered here; as long as it is not known that there is no cloud, that
        something is not there is not said.
        """
        if self._forwarder.health.online and self._call.request.verb in _KEPT_VERBS:
            _ = self._answer_if_kept().addCallback(self._say_unreachable)
        else:
            self._leave()

    def _say_unreachable(self, answered: bool) -> None:
        if not answered and self._left():
            tell(self.exchange, _UNREACHABLE)

    def _leave(self) -> None:
        """Have the request answered without the cloud."""
        self._left()
        call = self._call
        if self._body is not None and self._body.begun:
            body = self._body.whole
            if body is None:
                tell(self.exchange, _UNREACHABLE)
                return
            call = replace(call, body=body)
        self._forwarder.offline.answer(call)


def _tell_of_token(tokens: SeenTokens, call: HubCall, status: int) -> None:
    """Tell what the status of an answer says of the token with which it was asked for."""
    if status == HTTPStatus.UNAUTHORIZED:
        told = tokens.refused if _only_api_answers(call.request) else tokens.doubted
        told(call.caller.token, call.holder)
    elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
        tokens.answered(call.caller.token, call.holder)


def _only_api_answers(request: ApiRequest) -> bool:
    """Return whether nobody but the API itself can have refused who asks.

    What it passes on of others is behind subresources, and behind groups that are aggregated; what
    is written, admission webhooks refuse with any status.
    """
    resource = request.resource
    return (
        resource is not None
        and not resource.group
        and not request.subresource
        and request.verb in _READING
    )


def client_patience(call: HubCall) -> float | None:
    """Return after how many seconds the client of a get or a list gives up, if it says so.

    It is more than :data:`EARLIER_SECONDS`; a client that gives up sooner cannot be helped.
    """
    if call.request.verb not in _KEPT_VERBS:
        return None
    asked, options = call.exchange.head.derived(_timeout), call.request.options
    seconds = asked if options.timeout_seconds is None else min(asked, options.timeout_seconds)
    return seconds if EARLIER_SECONDS < seconds < math.inf else None


def _timeout(head: RequestHead) -> float:
    """Return the seconds that ``timeout`` of a query says, as client-go has it; else infinity."""
    if b"timeout=" in head.target and (found := _TIMEOUT.search(head.target)) is not None:
        # What is no duration is the API's to refuse.
        with suppress(ValueError):
            return duration(found[1].decode("ascii"))
    return math.inf


def _made_of(head: RequestHead) -> dict[tuple[Server, bool], ForwardedRequest]:
    """Return the requests that were made of a head: by server, and whether answers are changed."""
    return {}


def _passed_on(fields: Fields, changed: bool) -> list[tuple[bytes, bytes]]:
    """Return the fields of a request that the API gets, beside ``Host``.

    An answer that is to be ``changed`` is asked for in JSON, and uncompressed.
    """
    passed = [field for field in fields if field[0].lower() not in _NOT_PASSED_ON]
    if not changed:
        return passed
    return [field for field in json_only(passed) if field[0].lower() != b"accept-encoding"]
