"""The interception's counters, its metrics, and the middleware ``metrics``, which counts requests.

The two gauges of requests in flight have the names of yurttunnel 1.2. There the label ``path`` was
the whole path, one series for each container; here it is the first segment.
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
from yurttunnel.server.frontends.calls import caller_key
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
    """Totals since the process started, except ``in_flight``, the current number of requests.

    Requests are counted by verb and path class, and answered ones also by status. ``handshakes``
    has an entry for each of :data:`HANDSHAKE_RESULTS`, ``verdicts`` for each of :data:`VERDICTS`.
    """

    in_flight: Counter[tuple[str, str]] = field(default_factory=Counter)
    completed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    durations: Durations = field(default_factory=lambda: Durations(REQUEST_SECONDS_BOUNDS))
    handshakes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptionStats:
    """The values of the metrics.

    ``pool`` is about the connections to kubelets, ``refusals`` counts by status what was rejected
    before the middlewares.
    """

    counters: InterceptionCounters
    pool: PoolStatistics
    refusals: Mapping[int, int]


METRICS: tuple[Metric[InterceptionStats], ...] = (
    gauge(
        f"{_PREFIX}in_proxy_requests",
        "Requests to kubelets in flight, by verb and first segment of the path. exec, attach,"
        " portForward and followed containerLogs last as long as they are used; a growing number"
        " of others waits for a slow node.",
        lambda stats: sorted(stats.counters.in_flight.items()),
        "verb",
        "path",
    ),
    gauge(
        f"{_PREFIX}total_in_proxy_requests",
        "The same over all verbs and paths. It is 0 when the server can be stopped without "
        "anybody noticing.",
        lambda stats: sum(stats.counters.in_flight.values()),
    ),
    counter(
        f"{_PREFIX}proxied_requests",
        "Completed requests to kubelets by the status sent to the caller: 101 for upgrades, none"
        " for callers that disconnected before a response. 502, 503 and 504 mostly come from the"
        " server: the node was unreachable, has no agent, or did not respond in time.",
        lambda stats: sorted(stats.counters.completed.items()),
        "verb",
        "path",
        "code",
    ),
    counter(
        f"{_PREFIX}refused_requests",
        "Requests that the ports rejected themselves, by status; they are not part of the other"
        " metrics and are not logged. 503: too many connections, about which the log warns; 408:"
        " incomplete requests; 400, 417, 431 and 501: requests that are malformed, have an"
        " unsupported expectation, are too large, or have an unknown encoding.",
        lambda stats: (
            (str(status), stats.refusals.get(status, 0))
            for status in sorted({*_REFUSED, *stats.refusals})
        ),
        "code",
    ),
    histogram(
        f"{_PREFIX}proxied_request_duration_seconds",
        "How long requests to kubelets took, from the head of the request to the end of the "
        "response; without upgrades, and without those that follow or watch. Compare with the "
        "round trip time of the node: a request on a pooled connection needs one, a new "
        "connection three more.",
        lambda stats: stats.counters.durations,
    ),
    counter(
        f"{_PREFIX}kubelet_tls_handshakes",
        "TLS handshakes with kubelets, by result. Many of result done with few upgraded requests"
        " mean that connections are not reused: see kubelet_pool_events. not_trusted:"
        " --kubelet-verify rejected the certificate; failed: the port has no TLS, or the kubelet"
        " closed the connection; timeout: the kubelet is overloaded or gone.",
        lambda stats: counts_of(HANDSHAKE_RESULTS, stats.counters.handshakes),
        "result",
    ),
    counter(
        f"{_PREFIX}kubelet_verifications",
        "Verification of kubelets in successful handshakes. If any are unverified: set their"
        " authority with --kubelet-ca, then require it with --kubelet-verify ca.",
        lambda stats: counts_of(VERDICTS, stats.counters.verdicts),
        "result",
    ),
    gauge(
        f"{_PREFIX}kubelet_connections",
        "Connections to kubelets of all nodes: in use by a request, including followed and"
        " upgraded ones, or idle.",
        lambda stats: (("in_use", stats.pool.in_use), ("idle", stats.pool.idle)),
        "state",
    ),
    gauge(
        f"{_PREFIX}kubelet_waiting_requests",
        "Requests that wait now because the connections to their kubelet are at the bound. More "
        "than 0 for long: a kubelet is too slow for its requests; in_proxy_requests and "
        "the log say by whom.",
        lambda stats: stats.pool.waiting,
    ),
    counter(
        f"{_PREFIX}kubelet_pool_events",
        "Events of the connection pools for kubelets: reuse, an idle connection was used; connect,"
        " a connection was attempted, of which connect_failed have failed; refusal, the caller got"
        " 503 because the limit of connections to one kubelet was reached (docs/limits.md). Many"
        " connects and few reuses: connections time out between the requests, or kubelets close"
        " them.",
        lambda stats: stats.pool.events(),
        "event",
    ),
)


@implementer(IMiddleware)
class RequestMetrics:
    """Updates ``counters``, with labels that have few values whatever callers send.

    Errors of the server itself are kept in ``failures``.
    """

    def __init__(
        self, clock: IReactorTime, counters: InterceptionCounters, failures: Failures | None = None
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._failures = failures

    def wrap(self, handler: Handler) -> Handler:
        def counted(request: InterceptedRequest) -> None:
            labels = request.verb, request.path_class
            began = self._clock.seconds()
            self._counters.in_flight[labels] += 1
            request.exchange.on_end(lambda _: self._ended(request, labels, began))
            handler(request)

        return counted

    def _ended(self, request: InterceptedRequest, labels: tuple[str, str], began: float) -> None:
        counters = self._counters
        status = request.exchange.status
        counters.in_flight[labels] -= 1
        counters.completed[(*labels, _code(status))] += 1
        # An unauthenticated caller gets a response with its own fields (401), not ``fail``.
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
    who = request.caller or caller_key(exchange.transport)
    failures.note("kubelets", who, node, request.request_id, exchange.status, failure)


def _code(status: int) -> str:
    """Return the status as a label; for unknown ones only the class."""
    if not status:
        return "none"
    return str(status) if status in _KNOWN else f"{status // 100}xx"
