"""The metrics of a service proxy.

Names that begin with ``kubeproxy_`` are those of kube-proxy (``pkg/proxy/metrics`` of Kubernetes),
so that its dashboards continue to work. The others begin with ``yurtproxy_``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from yurttunnel.metrics import Metric, counter, gauge, histogram
from yurttunnel.proxy.health import SyncHealth
from yurttunnel.proxy.proxier import Proxier
from yurttunnel.proxy.socket_manager import ServiceStatus
from yurttunnel.proxy.state.virtual_services import Protocol

PREFIX = "yurtproxy_"


@dataclass(frozen=True, slots=True)
class ProxyStats:
    """What is read at a scrape; ``draining`` are connections of services not in ``statuses``."""

    proxier: Proxier
    health: SyncHealth
    statuses: Sequence[ServiceStatus]
    totals: Mapping[tuple[Protocol, str], int]
    draining: Mapping[Protocol, int]

    def counted(self, name: str) -> Iterable[tuple[str, int]]:
        """Return the counter ``name`` by protocol."""
        return [(each.value, self.totals.get((each, name), 0)) for each in Protocol]

    def problems(self) -> Iterable[tuple[str, int]]:
        """Return the number of problems of objects, and of this node."""
        every, own = len(self.proxier.problems), self.proxier.own_problems
        return [("objects", every - own), ("node", own)]

    def without_endpoints(self) -> int | None:
        """Return the number of services without endpoints; ``None`` before the first sync.

        Otherwise all services would seem to have lost their endpoints at the start.
        """
        if self.health.last_synced is None:
            return None
        return sum(not each.service.endpoints for each in self.statuses)

    def active(self) -> Iterable[tuple[str, int]]:
        """Return the number of connections by protocol; nothing if it is not known."""
        found = {protocol: self.draining.get(protocol, 0) for protocol in Protocol}
        for each in self.statuses:
            if each.stats.active is None:
                return []
            found[each.service.key.protocol] += each.stats.active
        return [(protocol.value, count) for protocol, count in found.items()]


METRICS: tuple[Metric[ProxyStats], ...] = (
    histogram(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "Duration of successful syncs of sockets and rules.",
        lambda stats: stats.proxier.durations,
    ),
    gauge(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "Time of the last successful sync, in seconds since 1970.",
        lambda stats: stats.health.last_synced,
    ),
    gauge(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "Time of the last received change of Services or endpoints, in seconds since 1970.",
        lambda stats: stats.health.last_queued,
    ),
    histogram(
        "kubeproxy_network_programming_duration_seconds",
        "Time from the cause of a change of endpoints, such as a pod becoming ready, to the sync"
        " that applied it.",
        lambda stats: stats.health.programming,
    ),
    gauge(
        "yurtproxy_change_age_seconds",
        "Age of the oldest change that waits for a sync, 0 if there is none.",
        lambda stats: stats.health.waits(),
    ),
    counter(
        "yurtproxy_syncs",
        "Syncs of sockets and rules, by result. repaired: another program had changed the rules.",
        lambda stats: stats.proxier.syncs.items(),
        "result",
    ),
    gauge(
        "yurtproxy_problems",
        "Problems because of what Services request (objects) or because of this node (node), such"
        " as ports that are in use. The status page has the details.",
        lambda stats: stats.problems(),
        "of",
    ),
    gauge(
        "yurtproxy_services",
        "Number of virtual services (a port of a Service, by protocol and address family).",
        lambda stats: len(stats.statuses),
    ),
    gauge(
        "yurtproxy_endpoints",
        "Number of endpoints of the virtual services.",
        lambda stats: sum(len(each.service.endpoints) for each in stats.statuses),
    ),
    gauge(
        "yurtproxy_services_without_endpoints",
        "Virtual services without endpoints, whose clients are rejected. Absent before the first"
        " sync.",
        lambda stats: stats.without_endpoints(),
    ),
    gauge(
        "yurtproxy_ejected_endpoints",
        "Endpoints that get no new connections because dials to them failed.",
        lambda stats: sum(
            one.ejected_until is not None for each in stats.statuses for one in each.endpoints
        ),
    ),
    gauge(
        "yurtproxy_connections",
        "Open connections and UDP clients, by protocol. In kernel mode 10 to 30 s old, and absent"
        " if the kernel's table cannot be read or is too large.",
        lambda stats: stats.active(),
        "protocol",
    ),
    counter(
        "yurtproxy_accepted_connections",
        "Accepted connections and UDP clients, by protocol. In kernel mode about 10 s old, and a"
        " connection that is redirected to another endpoint counts again.",
        lambda stats: stats.counted("total"),
        "protocol",
    ),
    counter(
        "yurtproxy_failed_connections",
        "Connections and UDP clients that got no endpoint in user mode, by protocol.",
        lambda stats: stats.counted("failed"),
        "protocol",
    ),
    counter(
        "yurtproxy_received_bytes",
        "Bytes from clients in user mode, by protocol.",
        lambda stats: stats.counted("received"),
        "protocol",
    ),
    counter(
        "yurtproxy_sent_bytes",
        "Bytes to clients in user mode, by protocol.",
        lambda stats: stats.counted("sent"),
        "protocol",
    ),
    counter(
        "yurtproxy_forgotten_flows",
        "Connection tracking entries that were deleted: UDP flows to a former endpoint, TCP"
        " attempts that led nowhere, and reset TCP connections to a former proxy port.",
        lambda stats: stats.proxier.deleted_entries,
    ),
)


class ConnectionTable(NamedTuple):
    """The number of entries in the kernel's conntrack table, one a connection, and its limit.

    When the table is full, the kernel drops packets of new connections, and reports it in its own
    log only (``table full, dropping packet``, net/netfilter/nf_conntrack_core.c).
    """

    entries: int
    limit: int


def connection_table(proc: Path = Path("/proc")) -> ConnectionTable | None:
    """Return the usage in this network namespace; ``None`` while the kernel has no table."""
    settings = proc / "sys/net/netfilter"
    try:
        return ConnectionTable(
            int((settings / "nf_conntrack_count").read_bytes()),
            int((settings / "nf_conntrack_max").read_bytes()),
        )
    except OSError:
        return None


TABLE_METRICS: tuple[Metric[ConnectionTable], ...] = (
    gauge(
        "yurtproxy_conntrack_entries",
        "Entries in the kernel's connection tracking table, of all programs.",
        lambda table: table.entries,
    ),
    gauge(
        "yurtproxy_conntrack_limit",
        "Maximum number of entries (net.netfilter.nf_conntrack_max); packets of further"
        " connections are dropped.",
        lambda table: table.limit,
    ),
)
