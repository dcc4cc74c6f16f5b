"""All metrics that server and agent can show, with every label and value, and the alerts."""

from __future__ import annotations

import datetime
import re
from collections import Counter

from tests.deploy.rendering import DEPLOY, REPOSITORY
from tests.deploy.steering import all_steering_families
from tests.ops.snapshots import snapshot
from yurttunnel.http.pool import PoolStatistics
from yurttunnel.ops.agent_servers import ServerStats, agent_server_families
from yurttunnel.ops.agents import agent_families
from yurttunnel.ops.approval import ApprovalCounters, approval_families
from yurttunnel.ops.audit import AuditStats, audit_families
from yurttunnel.ops.authorization import (
    PROOFS,
    RESULTS,
    AuthorizationCounters,
    authorization_families,
)
from yurttunnel.ops.cluster_trust import (
    ClusterTrustStats,
    CommonCertificateCounters,
    RequestCounters,
    cluster_trust_families,
)
from yurttunnel.ops.families import MetricRegistry
from yurttunnel.ops.interception import (
    InterceptionCounters,
    InterceptionStats,
    interception_families,
)
from yurttunnel.ops.metrics import Stats, agent_registry, server_registry
from yurttunnel.ops.nodes import cloud_node_families
from yurttunnel.ops.siblings import SiblingStats, sibling_families
from yurttunnel.ops.workers import Resources, WorkerStats, worker_families
from yurttunnel.pki.approval import Reason
from yurttunnel.pki.approval_requests import Kind
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.credit import MemoryBudget

MONITORING = DEPLOY / "overlays" / "monitoring"
RULES = MONITORING / "yurttunnel-rules.yaml"

SESSION_ENDS = "yurttunnel_server_session_ends_total"
CLOSING = re.compile(r"\.close\(\s*Code\.([A-Z_]+)")


def registries() -> tuple[MetricRegistry, MetricRegistry]:
    """Return what a scrape of server and agent shows when everything is switched on."""
    stats = Stats(
        counters=TunnelCounters(),
        sessions=lambda: [snapshot()],
        certificates=lambda: {"server": datetime.datetime.now(datetime.UTC)},
        memory=MemoryBudget(1),
        reactor_lag=lambda: 0.0,
    )
    interception = InterceptionCounters()
    interception.in_hand["GET", "/metrics"] += 1
    for code in ("200", "502", "503", "504"):
        interception.answered["GET", "/metrics", code] += 1
    approvals = ApprovalCounters(
        approved=Counter(kind.value for kind in Kind),
        left_alone=Counter((kind.value, reason.value) for kind in Kind for reason in Reason),
    )
    callers = AuthorizationCounters(
        decisions=Counter((result, proof) for result in RESULTS for proof in PROOFS)
    )
    server = server_registry(stats)
    server.add(
        lambda: [
            *interception_families(
                InterceptionStats(
                    counters=interception, pool=PoolStatistics, refusals=lambda: {503: 1}
                )
            ),
            *approval_families(approvals),
            *authorization_families(callers),
            *all_steering_families(),
            *agent_families(Counter()),
            *audit_families(AuditStats()),
            *worker_families(WorkerStats(ready=1, restarts=0, resources={1: Resources(1.0, 1)})),
            *cloud_node_families(int),
            *cluster_trust_families(
                "yurttunnel_server_",
                ClusterTrustStats(
                    {"server": RequestCounters()}, common_certificates=CommonCertificateCounters()
                ),
            ),
            *sibling_families(
                SiblingStats(
                    known=int,
                    connected=int,
                    remote_nodes=int,
                    outgoing=TunnelCounters(),
                    incoming=TunnelCounters(),
                    open_outgoing=int,
                    open_incoming=int,
                    failed_attempts=int,
                )
            ),
        ],
    )
    agent = agent_registry(stats, lambda: 0)
    agent.add(
        lambda: [
            *agent_server_families(ServerStats()),
            *cluster_trust_families(
                "yurttunnel_agent_", ClusterTrustStats({"agent": RequestCounters()})
            ),
        ],
    )
    return server, agent


def samples():
    """Return the labels, with all values seen, of each series that the programs can show."""
    found: dict[str, dict[str, set[str]]] = {}
    for registry in registries():
        for family in registry:
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)
    found[SESSION_ENDS]["reason"] &= session_ends()
    return found


def session_ends():
    """Return the codes with which a session can end at the server, as labels.

    They are those of violations in the protocol core, and those that the server ends sessions with.
    Every code is shown, those with which nobody is let in as well: an alert on these never fires.
    """
    package = REPOSITORY / "yurttunnel"
    core = [path.read_text() for path in (package / "wire").glob("*.py")]
    others = [path.read_text() for path in (package / "server").rglob("*.py")]
    codes = {code for text in core for code in re.findall(r"\bCode\.([A-Z_]+)", text)}
    codes |= {code for text in others for code in CLOSING.findall(text)}
    return {code.lower() for code in codes}
