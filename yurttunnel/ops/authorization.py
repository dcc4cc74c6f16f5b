"""What the authorization of callers counts, and how a scrape shows it.

See :mod:`yurttunnel.ops.metrics`. It is there in a cluster only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from yurttunnel.ops.families import CounterMetricFamily, MetricFamily

RESULTS = ("allowed", "denied", "unauthenticated", "unavailable")
PROOFS = ("allowed_name", "certificate", "token", "none")
REVIEWS = ("token", "access")

_PREFIX = "yurttunnel_server_"


@dataclass(slots=True)
class LookupCounters:
    """How answers were come by: kept from before, shared with one that waits, or asked for."""

    kept: int = 0
    shared: int = 0
    asked: int = 0


@dataclass(slots=True)
class AuthorizationCounters:
    """Totals since the process started.

    ``decisions`` are by one of :data:`RESULTS` and one of :data:`PROOFS`, ``lookups`` and
    ``failures`` by one of :data:`REVIEWS`.
    """

    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    lookups: dict[str, LookupCounters] = field(
        default_factory=lambda: {review: LookupCounters() for review in REVIEWS}
    )
    failures: Counter[str] = field(default_factory=Counter)


def authorization_families(counters: AuthorizationCounters) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    yield _decisions(counters)
    yield _lookups(counters)
    yield _failures(counters)


def _decisions(counters: AuthorizationCounters) -> MetricFamily:
    family = CounterMetricFamily(
        f"{_PREFIX}caller_decisions",
        "Requests on --secure-port by what was decided, and by what the caller proved itself: a "
        "name of --allowed-callers, another certificate, a token, or none. denied (403): somebody "
        "lacks a role on nodes/proxy, or tries what is not for them; the log says who. "
        "unauthenticated (401): tokens are missing or have expired. unavailable (503): the API "
        "did not answer, see caller_review_failures.",
        labels=["result", "proof"],
    )
    for (result, proof), count in sorted(counters.decisions.items()):
        family.add_metric([result, proof], count)
    return family


def _lookups(counters: AuthorizationCounters) -> MetricFamily:
    family = CounterMetricFamily(
        f"{_PREFIX}caller_lookups",
        "What had to be known about callers, by the kind of review and how it was come by: kept "
        "from before, shared with a request that waited for the same, or asked of the API. Many "
        "asked ones beside few kept ones: callers change their tokens, or somebody tries many.",
        labels=["review", "source"],
    )
    for review in REVIEWS:
        lookups = counters.lookups[review]
        family.add_metric([review, "kept"], lookups.kept)
        family.add_metric([review, "shared"], lookups.shared)
        family.add_metric([review, "asked"], lookups.asked)
    return family


def _failures(counters: AuthorizationCounters) -> MetricFamily:
    family = CounterMetricFamily(
        f"{_PREFIX}caller_review_failures",
        "Reviews of callers that came to nothing because the API was out of reach, or refused to "
        "do them for this server; /readyz and the log say which. Callers of --allowed-callers, "
        "and those that were reviewed a moment ago, get through all the same.",
        labels=["review"],
    )
    for review in REVIEWS:
        family.add_metric([review], counters.failures[review])
    return family
