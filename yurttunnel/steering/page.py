"""Pages that show a report of :mod:`yurttunnel.steering.report`, as JSON and as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict

from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.meta import JsonPage
from yurttunnel.ops.status.markup import Markup, element, joined, mark, pairs
from yurttunnel.ops.status.sections import Section
from yurttunnel.steering.report import (
    AddressReport,
    DnsReport,
    FamilyReport,
    PassthroughReport,
    RulesReport,
    SteeringReport,
)

_NAME = "steering"


def steering_page(report: Callable[[], SteeringReport | None]) -> JsonPage:
    """Make the page ``/steering`` from ``report()``, which is ``None`` if steering is disabled."""
    return JsonPage(
        _NAME,
        "how the cluster's traffic gets to this server, as JSON",
        lambda: _shown(report()),
        "steering is disabled: it is for servers in a cluster, with --enable-iptables,"
        " --enable-dns-controller or --passthrough-port",
    )


def steering_section(report: SteeringReport | None) -> Section | None:
    """Make the section of the status page."""
    if report is None:
        return None
    content = joined(element("h2", "Steering"), list(_sections(report)))
    return Section(_NAME, content, "certificates")


def _shown(report: SteeringReport | None) -> dict[str, object] | None:
    """Return the report as ``/steering`` shows it: ``null`` for disabled parts.

    Times are in ISO 8601, in UTC.
    """
    if report is None:
        return None
    return {
        "iptables": None if report.rules is None else _rules(report.rules),
        "dns": None if report.dns is None else _dns(report.dns),
        "passthrough": None if report.passthrough is None else asdict(report.passthrough),
    }


def _rules(report: RulesReport) -> dict[str, object]:
    return {
        "state": report.state,
        "problem": report.problem,
        "families": [_family(each) for each in report.families],
    }


def _family(report: FamilyReport) -> dict[str, object]:
    return {
        "version": report.version,
        "backend": report.backend,
        "match": report.match,
        "ports": [
            {"port": each.port, "leads_to": each.target, "from": _origin(each.pods)}
            for each in report.ports
        ],
        "edge_addresses": asdict(report.edge),
        "cloud_addresses": asdict(report.cloud),
        "last_sync": _iso(report.last_sync),
        "last_success": _iso(report.last_success),
        "last_change": _iso(report.last_change),
        "differed": list(report.differed),
        "problem": report.problem,
        "notes": list(report.notes),
        "syncs": dict(report.syncs),
        "flows_cut": report.flows_cut,
    }


def _dns(report: DnsReport) -> dict[str, object]:
    return {**asdict(report), "last_write": _iso(report.last_write)}


def _origin(pods: bool) -> str:
    return "pods" if pods else "this machine"


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)


def _sections(report: SteeringReport) -> Iterator[Markup]:
    if report.rules is not None:
        yield from _rules_section(report.rules)
    if report.dns is not None:
        yield from _dns_section(report.dns)
    if report.passthrough is not None:
        yield from _passthrough_section(report.passthrough)


def _rules_section(report: RulesReport) -> Iterator[Markup]:
    yield element("h3", "Rules of the firewall")
    yield pairs(
        "State of the rules", [("state", report.state), ("problem", _problem(report.problem))]
    )
    for family in report.families:
        name = f"IPv{family.version}"
        yield element("h4", name)
        yield pairs(f"Rules for {name}", _family_rows(family).items())


def _family_rows(report: FamilyReport) -> dict[str, str]:
    return {
        "back end": report.backend or "none",
        "match": report.match or "none",
        "ports": _joined(
            f"{each.port} from {_origin(each.pods)} to {each.target}" for each in report.ports
        ),
        "edge addresses": _address_row(report.edge),
        "cloud addresses": _address_row(report.cloud),
        "last sync": _iso(report.last_sync) or "never",
        "last success": _iso(report.last_success) or "never",
        "last change": _iso(report.last_change) or "never",
        "differences": _joined(report.differed),
        "problem": _problem(report.problem),
        "notes": _joined(report.notes),
        "syncs": _counts(report.syncs),
        "connections cut": str(report.flows_cut),
    }


def _dns_section(report: DnsReport) -> Iterator[Markup]:
    yield element("h3", "DNS controller")
    yield pairs(
        "DNS controller",
        [
            ("leader", "yes" if report.leader else "no, another server is"),
            ("records", str(report.records)),
            ("writes", _counts(report.writes)),
            ("last write", _iso(report.last_write) or "never"),
            ("problem", _problem(report.problem)),
        ],
    )


def _passthrough_section(report: PassthroughReport) -> Iterator[Markup]:
    yield element("h3", "Pass-through")
    yield pairs(
        "Pass-through",
        [
            ("listens on port", str(report.port)),
            ("ports of nodes", ", ".join(map(str, report.ports)) or "none"),
            ("connections", str(report.connections)),
            ("refused", _counts(report.refused)),
        ],
    )


def _address_row(report: AddressReport) -> str:
    if not report.total:
        return "none"
    more = report.total - len(report.first)
    return f"{report.total}: {', '.join(report.first)}" + (f" and {more} more" if more else "")


def _problem(problem: str | None) -> str:
    return "none" if problem is None else mark("bad", problem)


def _counts(counts: Mapping[str, int]) -> str:
    return _joined(f"{count} {name}" for name, count in sorted(counts.items()))


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(texts) or "none"
