"""All metrics of the programs with their labels and values, and the alerts."""

from __future__ import annotations

import datetime
import re
from collections import Counter

from twisted.internet.task import Clock

from tests.cluster.fakes import FakeInformers
from tests.deploy.rendering import DEPLOY, REPOSITORY
from tests.deploy.steering import add_steering
from tests.ops.snapshots import snapshot
from yurttunnel.agent import servers
from yurttunnel.agent.process import PREFIX as AGENT_PREFIX
from yurttunnel.agent.process import agent_registry
from yurttunnel.cluster import nodes
from yurttunnel.http.pool import PoolStatistics
from yurttunnel.hub.cache.metrics import METRICS as CACHE_METRICS
from yurttunnel.hub.cache.metrics import CacheStats
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.filters.chain import METRICS as FILTER_METRICS
from yurttunnel.hub.filters.chain import Filters
from yurttunnel.hub.filters.watches import TrackedWatches
from yurttunnel.hub.forwarding.responses import METRICS as RESPONSE_METRICS
from yurttunnel.hub.forwarding.responses import ResponseHandler
from yurttunnel.hub.limits import METRICS as LIMIT_METRICS
from yurttunnel.hub.limits import Limits
from yurttunnel.hub.offline.service import METRICS as OFFLINE_METRICS
from yurttunnel.hub.offline.service import Offline, OfflineSettings
from yurttunnel.hub.process import PREFIX as HUB_PREFIX
from yurttunnel.hub.settings import HealthSettings
from yurttunnel.hub.upstream.servers import Server
from yurttunnel.hub.upstream.service import METRICS as UPSTREAM_METRICS
from yurttunnel.hub.upstream.service import Upstream
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.process_stats import add_process_metrics
from yurttunnel.pki.metrics import (
    ClusterTrustStats,
    CommonCertificateCounters,
    RequestCounters,
    cluster_trust_metrics,
)
from yurttunnel.proxy.health import METRICS as HEALTH_METRICS
from yurttunnel.proxy.health import HealthPages, SyncHealth
from yurttunnel.proxy.metrics import METRICS as PROXY_METRICS
from yurttunnel.proxy.metrics import PREFIX as PROXY_PREFIX
from yurttunnel.proxy.metrics import TABLE_METRICS, ConnectionTable, ProxyStats
from yurttunnel.proxy.proxier import Proxier
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.settings import SyncSettings
from yurttunnel.server import agents, approver
from yurttunnel.server import audit_log as audit
from yurttunnel.server.frontends.kubelet import metrics as interception
from yurttunnel.server.frontends.kubelet import reviews
from yurttunnel.server.process import PREFIX as SERVER_PREFIX
from yurttunnel.server.process import server_registry
from yurttunnel.server.siblings import service as siblings
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.credit import MemoryBudget

MONITORING = DEPLOY / "overlays" / "monitoring"
RULES = MONITORING / "yurttunnel-rules.yaml"

SESSION_ENDS = "yurttunnel_server_session_ends_total"
CLOSING = re.compile(r"\.close\(\s*Code\.([A-Z_]+)")


def registries() -> tuple[MetricRegistry, ...]:
    """Return the metrics of each program with every feature enabled."""
    of_process = {
        "counters": TunnelCounters(),
        "memory": MemoryBudget(1),
        "sessions": lambda: [snapshot()],
    }
    server = server_registry(**of_process)
    server.add(interception.METRICS, _interception_stats)
    server.add(approver.METRICS, approver.ApprovalCounters)
    callers = reviews.AuthorizationCounters(
        decisions=Counter((result, proof) for result in reviews.RESULTS for proof in reviews.PROOFS)
    )
    server.add(reviews.METRICS, lambda: callers)
    add_steering(server)
    server.add(agents.REFUSAL_METRICS, Counter)
    server.add(audit.METRICS, audit.AuditStats)
    server.add(nodes.METRICS, lambda: nodes.Nodes(FakeInformers()))
    server.add(
        cluster_trust_metrics("yurttunnel_server_"),
        lambda: ClusterTrustStats(
            {"server": RequestCounters()}, common_certificates=CommonCertificateCounters()
        ),
    )
    server.add(siblings.METRICS, _sibling_stats)
    agent = agent_registry(**of_process, failed_attempts=int)
    agent.add(servers.METRICS, servers.ServerStats)
    agent.add(
        cluster_trust_metrics("yurttunnel_agent_"),
        lambda: ClusterTrustStats({"agent": RequestCounters()}),
    )
    hub, proxy = _hub_registry(), _proxy_registry()
    certificates = {"server": datetime.datetime.now(datetime.UTC)}
    for registry, prefix in ((server, SERVER_PREFIX), (agent, AGENT_PREFIX), (hub, HUB_PREFIX)):
        add_process_metrics(registry, prefix, lambda: certificates, float)
    add_process_metrics(proxy, PROXY_PREFIX, None, float)
    return server, agent, hub, proxy


def _hub_registry() -> MetricRegistry:
    hub = MetricRegistry()
    server = Server("api.example", 6443)
    upstream = Upstream(Clock(), "edge-1", [server], True, HealthSettings(10, 2, 3, 2, 40), None)
    hub.add(UPSTREAM_METRICS, lambda: upstream)
    limits = Limits(Clock(), 1, 1)
    limits.in_flight["get"] += 1
    hub.add(LIMIT_METRICS, lambda: limits)
    hub.add(RESPONSE_METRICS, lambda: ResponseHandler(Clock(), None, None))
    hub.add(CACHE_METRICS, CacheStats)
    settings = OfflineSettings("edge-1")
    offline = Offline(Clock(), None, None, None, upstream.health, None, settings)
    offline.responses["get", "200"] += 1
    hub.add(OFFLINE_METRICS, lambda: offline)
    configuration = HubConfiguration(FakeInformers(), "kube-system", ())
    filters = Filters((), None, configuration, TrackedWatches(Clock()))
    filters.failures["masterservice"] = 0
    hub.add(FILTER_METRICS, lambda: filters)
    hub.add(
        cluster_trust_metrics(HUB_PREFIX), lambda: ClusterTrustStats({"client": RequestCounters()})
    )
    return hub


def _proxy_registry() -> MetricRegistry:
    clock = Clock()
    health = SyncHealth(clock, 1.0, lambda: True)
    health.queued()
    health.begun()
    health.synced()
    rules = NoRules()
    proxier = Proxier(
        clock,
        SyncSettings(period=1.0, min_period=0.0, drain=0.0, removes_rules=False),
        None,
        None,
        rules,
        rules,
        rules,
        None,
        health,
    )
    proxy = MetricRegistry()
    proxy.add(PROXY_METRICS, lambda: ProxyStats(proxier, health, [], {}, {}))
    proxy.add(HEALTH_METRICS, lambda: HealthPages(health))
    proxy.add(TABLE_METRICS, lambda: ConnectionTable(1, 2))
    return proxy


def _interception_stats() -> interception.InterceptionStats:
    counters = interception.InterceptionCounters()
    counters.in_flight["GET", "/metrics"] += 1
    for code in ("200", "502", "503", "504"):
        counters.completed["GET", "/metrics", code] += 1
    return interception.InterceptionStats(
        counters=counters, pool=PoolStatistics(), refusals={503: 1}
    )


def _sibling_stats() -> siblings.SiblingStats:
    return siblings.SiblingStats(
        known=0,
        connected=0,
        remote_nodes=0,
        outgoing=TunnelCounters(),
        incoming=TunnelCounters(),
        open_outgoing=0,
        open_incoming=0,
        failed_attempts=0,
    )


def samples():
    """Return each series of the programs with its labels and all their values."""
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
    """Return the codes with which a server can end a session, as label values.

    They are the codes of violations in the protocol core, and those with which the server closes
    sessions. The metric also has codes of rejected handshakes, but an alert on these never fires.
    """
    package = REPOSITORY / "yurttunnel"
    core = [path.read_text() for path in (package / "wire").glob("*.py")]
    others = [path.read_text() for path in (package / "server").rglob("*.py")]
    codes = {code for text in core for code in re.findall(r"\bCode\.([A-Z_]+)", text)}
    codes |= {code for text in others for code in CLOSING.findall(text)}
    return {code.lower() for code in codes}
