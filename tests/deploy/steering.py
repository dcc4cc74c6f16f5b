"""What servers tell of steering, with every series that they can show."""

from __future__ import annotations

from collections.abc import Iterable

from yurttunnel.ops.families import MetricFamily
from yurttunnel.ops.steering import (
    RESULTS,
    DnsReport,
    FamilyReport,
    PassthroughReport,
    RulesReport,
    SteeringReport,
    steering_families,
)
from yurttunnel.server.frontends.passthrough.stats import Refusal


def all_steering_families() -> Iterable[MetricFamily]:
    """Return the metrics of a server whose ways are all switched on."""
    families = tuple(
        FamilyReport(version=version, last_success=1.0, syncs=dict.fromkeys(RESULTS, 1))
        for version in (4, 6)
    )
    return steering_families(
        SteeringReport(
            RulesReport(state="steering", problem=None, families=families),
            DnsReport(leader=True, records=1, writes={"ConfigMap": 1}),
            PassthroughReport(
                port=10270,
                ports=(10250,),
                connections=1,
                refused={reason.value: 1 for reason in Refusal},
            ),
        )
    )
