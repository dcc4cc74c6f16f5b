"""What is told of steering: how the cluster's traffic gets to this server, and what ails it.

See :mod:`yurttunnel.ops.metrics` for how a scrape shows it, :mod:`yurttunnel.ops.steering_page`
for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily

UNCHANGED, CHANGED, REPAIRED, FAILED = RESULTS = ("unchanged", "changed", "repaired", "failed")
"""How a sync of the rules ends; one that ``repaired`` something wanted nothing else than the one
before, so that somebody else must have disturbed the rules."""

MOST_ADDRESSES = 100
"""How many addresses of a kind a report lists."""

_PREFIX = "yurttunnel_server_steering_"


@dataclass(frozen=True, slots=True)
class AddressReport:
    """Addresses: how many, and the first :data:`MOST_ADDRESSES` of them in their order."""

    total: int = 0
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PortReport:
    """Where a port of the nodes leads to, such as ``192.0.2.1:10263``, and for whom.

    ``pods`` says whether that goes for connections through this machine, too.
    """

    port: int
    target: str
    pods: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReport:
    """The rules of one family of addresses, as they were made last; ``version`` is 4 or 6.

    ``backend`` is ``nft`` or ``legacy``, ``match`` a value of ``--intercept-match``; both are
    ``None`` where there is no firewall. Times are in seconds since 1970. ``differed`` says what
    was not as wanted when something was changed last. ``problem`` says what fails now, ``notes``
    what else is to be known. ``syncs`` are by one of :data:`RESULTS`; they and ``flows_cut`` are
    totals since the process started.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesReport:
    """The rules of the firewall (``--enable-iptables``).

    ``state`` is one word; ``problem`` says what is not in order, ``None`` when all is.
    """

    state: str
    problem: str | None
    families: tuple[FamilyReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsReport:
    """The DNS controller (``--enable-dns-controller``); only the server that leads writes.

    ``records`` counts the lines that are there, ``writes`` is by the kind of object, such as
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

    ``ports`` are those of the nodes that lead to it. ``connections`` counts those that were led to
    a node since the process started, ``refused`` the others by one of a few reasons.
    """

    port: int
    ports: tuple[int, ...]
    connections: int
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SteeringReport:
    """What steering does; ``None`` for each of its ways that is switched off."""

    rules: RulesReport | None = None
    dns: DnsReport | None = None
    passthrough: PassthroughReport | None = None


def steering_families(report: SteeringReport) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    if report.rules is not None:
        yield from _rules(report.rules.families)
    if report.dns is not None:
        yield from _dns(report.dns)
    if report.passthrough is not None:
        yield from _passthrough(report.passthrough)


def _rules(families: Iterable[FamilyReport]) -> Iterator[MetricFamily]:
    families = tuple(families)
    yield _syncs(families)
    yield _gauge(
        "last_success_timestamp_seconds",
        "When the rules of the firewall were last known to be as wanted, in seconds since 1970; "
        "absent before. Alert when it is older than three times --iptables-sync-period: "
        "/steering and the log say what fails.",
        {_family(each): each.last_success for each in families},
    )
    yield _gauge(
        "intercepted_ports",
        "Ports of edge nodes that the rules lead to this server. 0 beside edge addresses "
        "that are known to the API: nothing is intercepted, and /readyz says why.",
        {_family(each): len({port.port for port in each.ports}) for each in families},
    )
    yield _addresses(families)
    yield _counter(
        "flows_cut",
        "Connections that were cut because the rules lead them elsewhere than before. Many for "
        "long: nodes change their addresses or labels again and again, or somebody flushes the "
        "rules (see syncs, repaired).",
        "family",
        {_family(each): each.flows_cut for each in families},
    )


def _syncs(families: Iterable[FamilyReport]) -> MetricFamily:
    family = CounterMetricFamily(
        f"{_PREFIX}syncs",
        "Looks at the rules of the firewall, by family of addresses and result. changed: nodes or "
        "ports were others. repaired: somebody else had disturbed the rules; a steady rate is a "
        "fight with another program, such as a second tunnel server or firewalld, and the log "
        "says over what. failed: the rules may be out of date; /steering says why.",
        labels=["family", "result"],
    )
    for each in families:
        for result in RESULTS:
            family.add_metric([_family(each), result], each.syncs.get(result, 0))
    return family


def _addresses(families: Iterable[FamilyReport]) -> MetricFamily:
    family = GaugeMetricFamily(
        f"{_PREFIX}addresses",
        "Addresses of nodes that the rules know: edge, to which connections are led through the "
        "tunnel, and cloud, which are reached directly. 0 edge ones: no node has a label "
        "openyurt.io/is-edge-worker=true (kubectl get nodes --show-labels), so there are no rules.",
        labels=["family", "side"],
    )
    for each in families:
        family.add_metric([_family(each), "edge"], each.edge.total)
        family.add_metric([_family(each), "cloud"], each.cloud.total)
    return family


def _dns(report: DnsReport) -> Iterator[MetricFamily]:
    yield GaugeMetricFamily(
        f"{_PREFIX}dns_leader",
        "1 on the server that writes the records of nodes, 0 on the others. The sum over all "
        "servers is 1; 0 for long: look at the Lease tunnel-dns-controller.",
        int(report.leader),
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}dns_records",
        "Names of nodes in the ConfigMap yurt-tunnel-nodes, on the server that leads. Fewer than "
        "there are nodes: nodes without address are left out, and /steering says so.",
        report.records,
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}dns_problem",
        "1 while the server that leads cannot make the records of nodes or the ports of the "
        "Service what they should be, 0 when all is well and on servers that do not lead. Alert "
        "when it stays: /steering and /readyz say what is wrong.",
        int(report.leader and report.problem is not None),
    )
    yield _counter(
        "dns_writes",
        "Objects that the DNS controller has written, by their kind. A steady rate without "
        "changes of nodes or ports: somebody else changes them back.",
        "kind",
        report.writes,
    )


def _passthrough(report: PassthroughReport) -> Iterator[MetricFamily]:
    yield CounterMetricFamily(
        f"{_PREFIX}passthrough_connections",
        "Connections on --passthrough-port that were led to a node. What of them failed on the way "
        "there is in dial_results.",
        report.connections,
    )
    yield _counter(
        "passthrough_refusals",
        "Connections on --passthrough-port that were not led to a node, by reason; the log says "
        "more of each. Callers see a connection that is reset.",
        "reason",
        report.refused,
    )


def _gauge(name: str, help_text: str, values: Mapping[str, float | None]) -> MetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}{name}", help_text, labels=["family"])
    for label, value in values.items():
        if value is not None:
            family.add_metric([label], value)
    return family


def _counter(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> MetricFamily:
    family = CounterMetricFamily(f"{_PREFIX}{name}", help_text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _family(report: FamilyReport) -> str:
    return f"ipv{report.version}"
