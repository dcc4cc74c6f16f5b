"""What the interception counts, the middleware ``metrics`` that counts requests, and the metrics.

The two gauges of requests in hand have the names of yurttunnel 1.2. Their label ``path`` was the
whole path there, one series for each container; here it is the first segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.http.fields import requested_upgrade
from yurttunnel.http.pool import PoolStatistics
from yurttunnel.metrics import Durations, Metric, counter, counts_of, gauge, histogram
from yurttunnel.ops.failures import Failures
from yurttunnel.server.frontends.calls import caller_behind
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest

REQUEST_SECONDS_BOUNDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""Upper bounds of the histogram of requests, in seconds."""

HANDSHAKE_RESULTS = ("done", "not_trusted", "failed", "timeout")
VERDICTS = ("verified", "unverified", "skipped")
_REFUSED = (400, 408, 417, 431, 501, 503)
_KNOWN = frozenset(status.value for status in HTTPStatus)

_PREFIX = "yurttunnel_server_"


@dataclass(slots=True)
class InterceptionCounters:
    """Totals since the process started, but for ``in_hand``, which are requests now.

    Requests are counted by verb and path class, and answered ones by the status, too.
    ``handshakes`` has one entry for each of :data:`HANDSHAKE_RESULTS`, ``verdicts`` one for each
    of :data:`VERDICTS`.
    """

    in_hand: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    durations: Durations = field(default_factory=lambda: Durations(REQUEST_SECONDS_BOUNDS))
    handshakes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptionStats:
    """What a scrape reads.

    ``pool`` is about the connections to kubelets, ``refusals`` about what was refused before any
    middleware saw it, by the status.
    """

    counters: InterceptionCounters
    pool: PoolStatistics
    refusals: Mapping[int, int]


METRICS: tuple[Metric[InterceptionStats], ...] = (
    gauge(
        f"{_PREFIX}in_proxy_requests",
        "Requests to kubelets that are being served now, by verb and first segment of the path. "
        "exec, attach, portForward and followed containerLogs last as long as somebody uses "
        "them; others that pile up wait for a slow node.",
        lambda stats: sorted(stats.counters.in_hand.items()),
        "verb",
        "path",
    ),
    gauge(
        f"{_PREFIX}total_in_proxy_requests",
        "The same over all verbs and paths. It is 0 when the server can be stopped without "
        "anybody noticing.",
        lambda stats: sum(stats.counters.in_hand.values()),
    ),
    counter(
        f"{_PREFIX}proxied_requests",
        "Requests to kubelets that have ended, by the status that the caller got, 101 for those "
        "that were upgraded, none for callers that left before. 502, 503 and 504 are mostly the "
        "server's: the node could not be reached, has no agent, or did not answer in time.",
        lambda stats: sorted(stats.counters.answered.items()),
        "verb",
        "path",
        "code",
    ),
    counter(
        f"{_PREFIX}refused_requests",
        "Requests that were answered by the ports themselves, by status; they are in no other "
        "figure and have no line in the log. 503: too many connections, of which the log warns; "
        "408: callers that do not send what they began; 400, 417, 431 and 501: requests that are "
        "malformed, expect what cannot be met, are too large, or have an unknown encoding.",
        lambda stats: (
            (str(status), stats.refusals.get(status, 0))
            for status in sorted({*_REFUSED, *stats.refusals})
        ),
        "code",
    ),
    histogram(
        f"{_PREFIX}proxied_request_duration_seconds",
        "How long requests to kubelets took, from the head of the request to the end of the "
        "answer; without upgrades, and without those that follow or watch. Compare with the "
        "round trip time of the node: a request on a pooled connection needs one, a new "
        "connection three more.",
        lambda stats: stats.counters.durations,
    ),
    counter(
        f"{_PREFIX}kubelet_tls_handshakes",
        "TLS handshakes with kubelets by how they ended. Many done ones beside few requests that "
        "were upgraded mean that connections are not reused: look at kubelet_pool_events. "
        "not_trusted is --kubelet-verify at work; failed is a port without TLS, or a kubelet "
        "that broke off; timeout a kubelet that is overloaded or gone.",
        lambda stats: counts_of(HANDSHAKE_RESULTS, stats.counters.handshakes),
        "result",
    ),
    counter(
        f"{_PREFIX}kubelet_verifications",
        "How far kubelets were verified in handshakes that were done. Any unverified ones: give "
        "their authority by --kubelet-ca, then demand it by --kubelet-verify ca.",
        lambda stats: counts_of(VERDICTS, stats.counters.verdicts),
        "result",
    ),
    gauge(
        f"{_PREFIX}kubelet_connections",
        "Connections to kubelets now, over all nodes: in use by a request, those that follow and "
        "those that were upgraded included, or idle until the next one.",
        lambda stats: (("in_use", stats.pool.in_use), ("idle", stats.pool.idle)),
        "state",
    ),
    gauge(
        f"{_PREFIX}kubelet_waiting_requests",
        "Requests that wait now because the connections to their kubelet are at the bound. More "
        "than 0 for long: a kubelet is too slow for what is asked of it; in_proxy_requests and "
        "the log say by whom.",
        lambda stats: stats.pool.waiting,
    ),
    counter(
        f"{_PREFIX}kubelet_pool_events",
        "What requests for connections to kubelets have led to: reuse, a connection that was "
        "there was used again; connect, one was made or tried, which failed as often as "
        "connect_failed says; refusal, the caller got 503 because the connections to one kubelet "
        "were at their bounds (docs/limits.md). Many connects beside few reuses: requests come "
        "less often than once in the time for which a connection is kept, or kubelets close them.",
        lambda stats: stats.pool.events(),
        "event",
    ),
)


@implementer(IMiddleware)
class RequestMetrics:
    """Counts into ``counters``, under labels that have few values whatever callers send.

    What the server itself has answered with an error is kept in ``failures``.
    """

    def __init__(
        self,
        clock: IReactorTime,
        counters: InterceptionCounters,
        failures: Failures | None = None,
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._failures = failures

    def wrap(self, handler: Handler) -> Handler:
        """See :class:`IMiddleware`."""

        def counted(request: InterceptedRequest) -> None:
            labels = request.verb, request.path_class
            began = self._clock.seconds()
            self._counters.in_hand[labels] += 1
            request.exchange.on_end(lambda _: self._ended(request, labels, began))
            handler(request)

        return counted

    def _ended(self, request: InterceptedRequest, labels: tuple[str, str], began: float) -> None:
        counters = self._counters
        status = request.exchange.status
        counters.in_hand[labels] -= 1
        counters.answered[(*labels, _code(status))] += 1
        # Who is not known is answered with fields of its own (401), and not by ``fail``.
        failure = request.exchange.failure or (request.refusal if status else "")
        if self._failures is not None and failure:
            _note(self._failures, request, failure)
        head = request.exchange.head
        upgraded = b"upgrade" in head.by_name and requested_upgrade(head) is not None
        if not (upgraded or request.follows):
            counters.durations.observe(self._clock.seconds() - began)


def _note(failures: Failures, request: InterceptedRequest, failure: str) -> None:
    exchange, destination = request.exchange, request.destination
    node = request.node or ("" if destination is None else destination.node)
    who = request.caller or caller_behind(exchange.transport)
    failures.note("kubelets", who, node, request.request_id, exchange.status, failure)


def _code(status: int) -> str:
    """Return the status as a label; of those that nobody has heard of, only the class."""
    if not status:
        return "none"
    return str(status) if status in _KNOWN else f"{status // 100}xx"
