"""The report of steering: how the cluster's traffic gets to this server, and current problems.

The metrics here show it to a scrape, and :mod:`yurttunnel.steering.page` shows it to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from yurttunnel.metrics import Metric, counter, gauge

UNCHANGED, CHANGED, REPAIRED, FAILED = RESULTS = ("unchanged", "changed", "repaired", "failed")
"""The results of a sync of the rules. ``repaired`` means that the rules differed though the desired
state had not changed, so that another program must have changed them."""

MAX_ADDRESSES = 100
"""The maximum number of addresses of a kind in a report."""

_PREFIX = "yurttunnel_server_steering_"


@dataclass(frozen=True, slots=True)
class AddressReport:
    """The number of addresses, and the first :data:`MAX_ADDRESSES` of them in order."""

    total: int = 0
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PortReport:
    """The target of a port of the nodes, such as ``192.0.2.1:10263``, and for which clients.

    ``pods`` is whether it applies to forwarded connections, or to those of this machine.
    """

    port: int
    target: str
    pods: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReport:
    """The rules of one address family, as of the last sync; ``version`` is 4 or 6.

    ``backend`` is ``nft`` or ``legacy``, ``match`` a value of ``--intercept-match``; both are
    ``None`` if there is no firewall. Times are in seconds since 1970. ``differed`` says what
    differed at the last change. ``problem`` is the current error, ``notes`` are further
    information. ``syncs`` are by one of :data:`RESULTS`; they and ``flows_cut`` are totals since
    the process started.
    """

    version: int
    backend: str | None = None
    match: str | None = None
    ports: tuple[PortReport, ...] = ()
    edge: AddressReport = AddressReport()
    cloud: AddressReport = AddressReport()
    last_sync: float | None = None
    last_success: float | None = None
    last_change: float | None = None
    differed: tuple[str, ...] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()
    syncs: Mapping[str, int] = field(default_factory=dict)
    flows_cut: int = 0

    @property
    def name(self) -> str:
        """The value of the metrics' label."""
        return f"ipv{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesReport:
    """The firewall rules (``--enable-iptables``).

    ``state`` is one word; ``problem`` is the current error, or ``None``.
    """

    state: str
    problem: str | None
    families: tuple[FamilyReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsReport:
    """The DNS controller (``--enable-dns-controller``); only the leading server writes.

    ``records`` is the number of records, ``writes`` is by the kind of object, such as
    ``ConfigMap``. ``last_write`` is in seconds since 1970.
    """

    leader: bool
    records: int
    writes: Mapping[str, int]
    last_write: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassthroughReport:
    """Layer-4 pass-through (``--passthrough-port``, which is ``port``).

    ``ports`` are the ports of the nodes that are redirected to it. ``connections`` is the number of
    those that were forwarded to a node since the process started, ``refused`` the number of others
    by one of a few reasons.
    """

    port: int
    ports: tuple[int, ...]
    connections: int
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SteeringReport:
    """The state of steering; ``None`` for each method that is disabled."""

    rules: RulesReport | None = None
    dns: DnsReport | None = None
    passthrough: PassthroughReport | None = None


RULES_METRICS: tuple[Metric[RulesReport], ...] = (
    counter(
        f"{_PREFIX}syncs",
        "Checks of the firewall rules, by address family and result. changed: nodes or ports"
        " changed. repaired: another program had changed the rules; a steady rate is a conflict"
        " with another program, such as a second tunnel server or firewalld, and the log has the"
        " rules. failed: the rules may be outdated; /steering has the reason.",
        lambda report: (
            ((each.name, result), each.syncs.get(result, 0))
            for each in report.families
            for result in RESULTS
        ),
        "family",
        "result",
    ),
    gauge(
        f"{_PREFIX}last_success_timestamp_seconds",
        "Time when the firewall rules were last verified, in seconds since 1970; absent before."
        " Alert when it is older than three times --iptables-sync-period: /steering and the log"
        " have the reason.",
        lambda report: (
            (each.name, each.last_success)
            for each in report.families
            if each.last_success is not None
        ),
        "family",
    ),
    gauge(
        f"{_PREFIX}intercepted_ports",
        "Ports of edge nodes that the rules redirect to this server. If 0 although edge addresses"
        " are known: nothing is intercepted, and /readyz has the reason.",
        lambda report: (
            (each.name, len({port.port for port in each.ports})) for each in report.families
        ),
        "family",
    ),
    gauge(
        f"{_PREFIX}addresses",
        "Addresses of nodes in the rules: edge, reached through the tunnel, and cloud, reached"
        " directly. If edge is 0: no node has the label openyurt.io/is-edge-worker=true (kubectl"
        " get nodes --show-labels), so there are no rules.",
        lambda report: (
            ((each.name, side), addresses.total)
            for each in report.families
            for side, addresses in (("edge", each.edge), ("cloud", each.cloud))
        ),
        "family",
        "side",
    ),
    counter(
        f"{_PREFIX}flows_cut",
        "Connections that were closed because the rules redirect them elsewhere now. Many for"
        " long: nodes change their addresses or labels repeatedly, or somebody flushes the rules"
        " (see syncs, repaired).",
        lambda report: ((each.name, each.flows_cut) for each in report.families),
        "family",
    ),
)

DNS_METRICS: tuple[Metric[DnsReport], ...] = (
    gauge(
        f"{_PREFIX}dns_leader",
        "1 on the server that writes the records of nodes, 0 on the others. The sum over all "
        "servers is 1. If it stays 0: check the Lease tunnel-dns-controller.",
        lambda report: int(report.leader),
    ),
    gauge(
        f"{_PREFIX}dns_records",
        "Names of nodes in the ConfigMap yurt-tunnel-nodes, on the server that leads. Fewer than "
        "there are nodes: nodes without an address have none, and /steering names them.",
        lambda report: report.records,
    ),
    gauge(
        f"{_PREFIX}dns_problem",
        "1 while the server that leads cannot update the records of nodes or the ports of the"
        " Service, 0 otherwise and on servers that do not lead. Alert when it persists: /steering"
        " and /readyz have the reason.",
        lambda report: int(report.leader and report.problem is not None),
    ),
    counter(
        f"{_PREFIX}dns_writes",
        "Objects written by the DNS controller, by kind. A steady rate without changes of nodes"
        " or ports: another program reverts them.",
        lambda report: sorted(report.writes.items()),
        "kind",
    ),
)

PASSTHROUGH_METRICS: tuple[Metric[PassthroughReport], ...] = (
    counter(
        f"{_PREFIX}passthrough_connections",
        "Connections on --passthrough-port that were forwarded to a node. Failures to reach it are"
        " in dial_results.",
        lambda report: report.connections,
    ),
    counter(
        f"{_PREFIX}passthrough_refusals",
        "Connections on --passthrough-port that were not forwarded to a node, by reason; the log"
        " has the details. Callers see a connection reset.",
        lambda report: sorted(report.refused.items()),
        "reason",
    ),
)
