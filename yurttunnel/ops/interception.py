"""What the interception counts, and how a scrape shows it; see :mod:`yurttunnel.ops.metrics`.

The two gauges of requests in hand have the names of yurttunnel 1.2. Their label ``path`` was the
whole path there, one series for each container; here it is the first segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from yurttunnel.http.pool import PoolStatistics
from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily
from yurttunnel.ops.histograms import duration_histogram
from yurttunnel.tunnel.statistics import Durations

REQUEST_SECONDS_BOUNDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""Upper bounds of the histogram of requests, in seconds."""

HANDSHAKE_RESULTS = ("done", "not_trusted", "failed", "timeout")
VERDICTS = ("verified", "unverified", "skipped")
_REFUSED = (400, 408, 417, 431, 501, 503)

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
    """Where the figures come from.

    ``pool`` is about the connections to kubelets, ``refusals`` about what was refused before any
    middleware saw it, by the status.
    """

    counters: InterceptionCounters
    pool: Callable[[], PoolStatistics]
    refusals: Callable[[], Mapping[int, int]]


def interception_families(stats: InterceptionStats) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    counters = stats.counters
    yield from _in_hand(counters.in_hand)
    yield _answered(counters.answered)
    yield _refused(stats.refusals())
    yield _durations(counters.durations)
    yield _by_label(
        "kubelet_tls_handshakes",
        "TLS handshakes with kubelets by how they ended. Many done ones beside few requests that "
        "were upgraded mean that connections are not reused: look at kubelet_pool_events. "
        "not_trusted is --kubelet-verify at work; failed is a port without TLS, or a kubelet "
        "that broke off; timeout a kubelet that is overloaded or gone.",
        "result",
        HANDSHAKE_RESULTS,
        counters.handshakes,
    )
    yield _by_label(
        "kubelet_verifications",
        "How far kubelets were verified in handshakes that were done. Any unverified ones: give "
        "their authority by --kubelet-ca, then demand it by --kubelet-verify ca.",
        "result",
        VERDICTS,
        counters.verdicts,
    )
    yield from _pool(stats.pool())


def _pool(statistics: PoolStatistics) -> Iterator[MetricFamily]:
    connections = GaugeMetricFamily(
        f"{_PREFIX}kubelet_connections",
        "Connections to kubelets now, over all nodes: in use by a request, those that follow and "
        "those that were upgraded included, or idle until the next one.",
        labels=["state"],
    )
    connections.add_metric(["in_use"], statistics.in_use)
    connections.add_metric(["idle"], statistics.idle)
    yield connections
    yield GaugeMetricFamily(
        f"{_PREFIX}kubelet_waiting_requests",
        "Requests that wait now because the connections to their kubelet are at the bound. More "
        "than 0 for long: a kubelet is too slow for what is asked of it; in_proxy_requests and "
        "the log say by whom.",
        statistics.waiting,
    )
    yield _by_label(
        "kubelet_pool_events",
        "What requests for connections to kubelets have led to: reuse, a connection that was "
        "there was used again; connect, one was made or tried, which failed as often as "
        "connect_failed says; refusal, the caller got 503 because the connections to one kubelet "
        "were at their bounds (docs/limits.md). Many connects beside few reuses: requests come "
        "less often than once in the time for which a connection is kept, or kubelets close them.",
        "event",
        ("reuse", "connect", "connect_failed", "refusal"),
        Counter(
            reuse=statistics.reuses,
            connect=statistics.connects,
            connect_failed=statistics.failed_connects,
            refusal=statistics.refusals,
        ),
    )


def _in_hand(in_hand: Counter[tuple[str, str]]) -> Iterator[MetricFamily]:
    by_path = GaugeMetricFamily(
        f"{_PREFIX}in_proxy_requests",
        "Requests to kubelets that are being served now, by verb and first segment of the path. "
        "exec, attach, portForward and followed containerLogs last as long as somebody uses "
        "them; others that pile up wait for a slow node.",
        labels=["verb", "path"],
    )
    for (verb, path), count in sorted(in_hand.items()):
        by_path.add_metric([verb, path], count)
    yield by_path
    yield GaugeMetricFamily(
        f"{_PREFIX}total_in_proxy_requests",
        "The same over all verbs and paths. It is 0 when the server can be stopped without "
        "anybody noticing.",
        sum(in_hand.values()),
    )


def _answered(answered: Counter[tuple[str, str, str]]) -> MetricFamily:
    family = CounterMetricFamily(
        f"{_PREFIX}proxied_requests",
        "Requests to kubelets that have ended, by the status that the caller got, 101 for those "
        "that were upgraded, none for callers that left before. 502, 503 and 504 are mostly the "
        "server's: the node could not be reached, has no agent, or did not answer in time.",
        labels=["verb", "path", "code"],
    )
    for labels, count in sorted(answered.items()):
        family.add_metric(labels, count)
    return family


def _refused(refusals: Mapping[int, int]) -> MetricFamily:
    family = CounterMetricFamily(
        f"{_PREFIX}refused_requests",
        "Requests that were answered by the ports themselves, by status; they are in no other "
        "figure and have no line in the log. 503: too many connections, of which the log warns; "
        "408: callers that do not send what they began; 400, 417, 431 and 501: requests that are "
        "malformed, expect what cannot be met, are too large, or have an unknown encoding.",
        labels=["code"],
    )
    for status in sorted({*_REFUSED, *refusals}):
        family.add_metric([str(status)], refusals.get(status, 0))
    return family


def _durations(durations: Durations) -> MetricFamily:
    return duration_histogram(
        f"{_PREFIX}proxied_request_duration_seconds",
        "How long requests to kubelets took, from the head of the request to the end of the "
        "answer; without upgrades, and without those that follow or watch. Compare with the "
        "round trip time of the node: a request on a pooled connection needs one, a new "
        "connection three more.",
        durations,
    )


def _by_label(
    name: str, help_text: str, label: str, values: Iterable[str], counts: Counter[str]
) -> MetricFamily:
    """Count by a label whose values are all there from the start, so ``rate`` sees the first."""
    family = CounterMetricFamily(f"{_PREFIX}{name}", help_text, labels=[label])
    for value in values:
        family.add_metric([value], counts[value])
    return family
