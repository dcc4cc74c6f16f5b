"""What the approver counts, and how a scrape shows it; see :mod:`yurttunnel.ops.metrics`.

Of all servers only the one that leads approves, so sums over the servers are the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from yurttunnel.ops.families import CounterMetricFamily, MetricFamily

_PREFIX = "yurttunnel_server_"


@dataclass(slots=True)
class ApprovalCounters:
    """Totals since the process started.

    ``approved`` is by the kind of certificate, ``left_alone`` by kind and reason; both are values
    of the enumerations of the rules, so there are few. ``failures`` are attempts that are
    repeated.
    """

    approved: Counter[str] = field(default_factory=Counter)
    left_alone: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: int = 0


def approval_families(counters: ApprovalCounters) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    approved = CounterMetricFamily(
        f"{_PREFIX}certificate_requests_approved",
        "Certificate requests that this server has approved, by the kind of certificate. Many "
        "agent ones: agents lose their certificates (--cert-dir), or addresses of nodes change.",
        labels=["kind"],
    )
    for kind, count in sorted(counters.approved.items()):
        approved.add_metric([kind], count)
    yield approved
    left_alone = CounterMetricFamily(
        f"{_PREFIX}certificate_requests_left_alone",
        "Certificate requests of the tunnel that were not approved, by kind and reason. requester "
        "and unbound_token: somebody asks for a certificate that is not theirs, which may be an "
        "attack, as may be other_node: a node reports the name of another one as its own. names: "
        "an agent claims more than its node has. other_installation: servers in another "
        "namespace, whose own approver it is for; nothing is to be done. Others are mistakes. The "
        "event on the request (kubectl describe csr) and the log say who, for what, and what to "
        "do.",
        labels=["kind", "reason"],
    )
    for (kind, reason), count in sorted(counters.left_alone.items()):
        left_alone.add_metric([kind, reason], count)
    yield left_alone
    yield CounterMetricFamily(
        f"{_PREFIX}certificate_request_failures",
        "Attempts to look at or approve a certificate request that failed and are repeated: the "
        "API was out of reach, or does not permit it; /readyz and the log say which.",
        counters.failures,
    )
