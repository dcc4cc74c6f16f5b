"""The steering metrics of a server, with every series."""

from __future__ import annotations

from yurttunnel.metrics import MetricRegistry
from yurttunnel.server.frontends.passthrough.listener import Refusal
from yurttunnel.steering.report import (
    DNS_METRICS,
    PASSTHROUGH_METRICS,
    RESULTS,
    RULES_METRICS,
    DnsReport,
    FamilyReport,
    PassthroughReport,
    RulesReport,
)


def add_steering(registry: MetricRegistry) -> None:
    """Add the metrics of a server with every kind of steering enabled to ``registry``."""
    families = tuple(
        FamilyReport(version=version, last_success=1.0, syncs=dict.fromkeys(RESULTS, 1))
        for version in (4, 6)
    )
    rules = RulesReport(state="steering", problem=None, families=families)
    dns = DnsReport(leader=True, records=1, writes={"ConfigMap": 1})
    passthrough = PassthroughReport(
        port=10270,
        ports=(10250,),
        connections=1,
        refused={reason.value: 1 for reason in Refusal},
    )
    registry.add(RULES_METRICS, lambda: rules)
    registry.add(DNS_METRICS, lambda: dns)
    registry.add(PASSTHROUGH_METRICS, lambda: passthrough)


def all_steering_families() -> MetricRegistry:
    """Return a registry with only the steering metrics."""
    registry = MetricRegistry()
    add_steering(registry)
    return registry
