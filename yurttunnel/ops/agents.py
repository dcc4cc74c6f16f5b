"""What the agents' listener counts, and how a scrape shows it (:mod:`yurttunnel.ops.metrics`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from yurttunnel.ops.families import CounterMetricFamily, MetricFamily

REFUSALS = (
    "not_authorized",
    "revoked",
    "tls",
    "timeout",
    "version",
    "going_away",
    "overloaded",
    "lost",
)
"""Why connections come to nothing; what else there is counts as ``protocol``."""


def agent_families(refusals: Counter[str]) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    family = CounterMetricFamily(
        "yurttunnel_server_refused_agents",
        "Connections to the agents' port that have not become a session, by reason. "
        "not_authorized: somebody with a certificate claims what is another node's, or none of "
        "the tunnel's, which may be an attack; revoked: a node that was cut off; tls: no "
        "certificate that is trusted, or none at all; timeout and lost: networks, and scanners; "
        "overloaded: many newer ones were unfinished, too; "
        "going_away: this server was about to stop. The log has each, with its address.",
        labels=["reason"],
    )
    for reason in (*REFUSALS, "protocol"):
        family.add_metric([reason], refusals[reason])
    yield family
