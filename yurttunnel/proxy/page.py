"""The sections of the status page about Services, and the page ``/services``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.meta import JsonPage
from yurttunnel.ops.slices import gather
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import (
    Column,
    Content,
    Markup,
    element,
    joined,
    mark,
    pairs,
    table,
)
from yurttunnel.ops.status.sections import NO_MATCH, MakeSection, PageContext, Section, listing
from yurttunnel.proxy.health import SyncHealth
from yurttunnel.proxy.interfaces import EndpointStats, KernelStats, SocketStats
from yurttunnel.proxy.proxier import Proxier
from yurttunnel.proxy.socket_manager import ServiceStatus
from yurttunnel.proxy.state.virtual_services import Endpoint, Problem

MAX_SHOWN = 100
"""The maximum number of Services shown at once; ``?q=`` finds the others."""

MAX_ENDPOINTS = 10
"""The maximum for one service, those with failures first."""


def services_page(clock: IReactorTime, statuses: Callable[[], Iterable[ServiceStatus]]) -> JsonPage:
    """Make the page ``/services``."""
    return JsonPage(
        "services",
        "Services with their endpoints, as JSON",
        lambda: (_as_json(each, clock.seconds()) for each in statuses()),
        "",
    )


def services_section(
    clock: IReactorTime, statuses: Callable[[], Iterable[ServiceStatus]]
) -> MakeSection:
    """Return a function that makes the section of Services."""

    def section(moment: PageContext) -> Generator[str, None, Section]:
        every = yield from gather(statuses())
        found = yield from gather(every, lambda each: _matches(each, moment))
        failures = yield from gather(map(_failures, found))
        order = sorted(
            range(len(found)), key=lambda each: (-failures[each], found[each].service.key.name)
        )
        columns = _columns(clock.seconds())
        content = listing(
            "Services",
            [found[each] for each in order[:MAX_SHOWN]],
            len(every),
            "those with failures first",
            lambda rows: table("Services", columns, rows),
            NO_MATCH if every else "No Service has an address that is served here.",
        )
        return Section("services", content, "sessions", ("services", f"{len(every):,}"))

    return section


def syncs_section(health: SyncHealth, proxier: Callable[[], Proxier | None]) -> MakeSection:
    """Return a function that makes the section of syncs of sockets and rules."""

    def section(moment: PageContext) -> Section | None:
        what = proxier()
        if what is None:
            return None
        last = health.last_synced
        rows: list[tuple[str, Content]] = [
            (
                "Last successful sync",
                "none yet" if last is None else formatting.ago(formatting.at(last), moment.now),
            ),
            ("Duration", formatting.round_trip(what.last_took)),
            ("Oldest waiting change", formatting.duration(health.waits())),
            ("Since the start", ", ".join(f"{each:,} {how}" for how, each in what.syncs.items())),
        ]
        content = [element("h2", "Syncs of sockets and rules"), pairs("Syncs", rows)]
        return Section("syncs", content, "streams")

    return section


def problems_section(problems: Callable[[], Sequence[Problem]]) -> MakeSection:
    """Return a function that makes the section of problems."""

    def section(moment: PageContext) -> Section | None:
        every = problems()
        if not every:
            return None
        found = [each for each in every if moment.matches(each.what, each.text)]
        columns: list[Column[Problem]] = [
            Column("Object", lambda each: each.what, "name"),
            Column("Problem", lambda each: mark("warn", each.text)),
        ]
        content = listing(
            "Problems of Services",
            found[:MAX_SHOWN],
            len(every),
            "in no order",
            lambda rows: table("Problems of Services", columns, rows),
            NO_MATCH,
        )
        return Section("problems", content, "sessions", ("problems", f"{len(every):,}"))

    return section


def _columns(now: float) -> list[Column[ServiceStatus]]:
    return [
        Column("Service", _name, "name"),
        Column("Addresses", lambda each: _lines(map(str, each.service.portals))),
        Column("Endpoints", lambda each: _endpoints(each, now)),
        Column("Proxy port", _port, "number"),
        Column("Connections", _connections, "number", _activity),
        Column("Bytes", _bytes, "number", _received),
    ]


def _name(each: ServiceStatus) -> Markup:
    key = each.service.key
    scope = "" if key.scope.value == "all" else f", {key.scope.value}"
    kind = f"{key.protocol.value} IPv{key.version}{scope}"
    return joined(str(key.name), element("small", kind))


def _endpoints(each: ServiceStatus, now: float) -> Content:
    if not each.service.endpoints:
        return mark("warn", f"none: clients are {each.service.no_endpoints_action.value}")
    known = {stats.endpoint: stats for stats in each.endpoints}
    ordered = sorted(
        each.service.endpoints, key=lambda one: -known[one].failures if one in known else 0
    )
    shown = [_endpoint(one, known.get(one), now) for one in ordered[:MAX_ENDPOINTS]]
    more = len(ordered) - len(shown)
    return _lines([*shown, f"and {more} more"] if more else shown)


def _endpoint(endpoint: Endpoint, stats: EndpointStats | None, now: float) -> Content:
    if stats is None or not stats.failures:
        return str(endpoint)
    details = f"{formatting.counted(stats.failures, 'failed dial')}, the last: {stats.last_failure}"
    if stats.ejected_until is None:
        return joined(str(endpoint), element("small", details))
    remaining = formatting.duration(stats.ejected_until - now)
    return joined(
        str(endpoint), " ", mark("bad", f"ejected for {remaining}"), element("small", details)
    )


def _port(each: ServiceStatus) -> str:
    if each.port is not None:
        return str(each.port)
    return "the kernel" if isinstance(each.stats, KernelStats) else "none yet"


def _connections(each: ServiceStatus) -> Content:
    stats = each.stats
    if stats.total is None:
        return f"{stats.active:,}" if stats.active else ""
    if stats.active is None:
        return f"{stats.total:,} in total"
    failed = stats.failed if isinstance(stats, SocketStats) else 0
    refused = element("small", f"{failed:,} without endpoint") if failed else ""
    return joined(f"{stats.active:,} of {stats.total:,}", refused)


def _activity(each: ServiceStatus) -> float:
    stats = each.stats
    return (stats.total or 0) if stats.active is None else stats.active


def _bytes(each: ServiceStatus) -> str:
    stats = each.stats
    if not isinstance(stats, SocketStats):
        return ""
    return f"{formatting.size(stats.received)} in, {formatting.size(stats.sent)} out"


def _received(each: ServiceStatus) -> float:
    return each.stats.received if isinstance(each.stats, SocketStats) else 0


def _lines(contents: Iterable[Content]) -> list[Markup]:
    return [element("div", each) for each in contents]


def _matches(each: ServiceStatus, moment: PageContext) -> bool:
    return not moment.filter_text or moment.matches(*_texts(each))


def _texts(each: ServiceStatus) -> list[str]:
    service = each.service
    return [str(service.key), *map(str, service.portals), *map(str, service.endpoints)]


def _failures(each: ServiceStatus) -> int:
    return sum(stats.failures for stats in each.endpoints)


def _as_json(each: ServiceStatus, now: float) -> dict[str, object]:
    service = each.service
    known = {stats.endpoint: stats for stats in each.endpoints}
    return {
        "service": str(service.key.name),
        "protocol": service.key.protocol.value,
        "version": service.key.version,
        "scope": service.key.scope.value,
        "portals": list(map(str, service.portals)),
        "proxy_port": each.port,
        "endpoints": [_endpoint_json(one, known.get(one), now) for one in service.endpoints],
        **_counts(each),
    }


def _counts(each: ServiceStatus) -> dict[str, int]:
    return {name: count for name, count in asdict(each.stats).items() if count is not None}


def _endpoint_json(
    endpoint: Endpoint, stats: EndpointStats | None, now: float
) -> dict[str, object]:
    if stats is None:
        return {"endpoint": str(endpoint)}
    remaining = None if stats.ejected_until is None else max(0.0, stats.ejected_until - now)
    return {
        "endpoint": str(endpoint),
        "active": stats.active,
        "failures": stats.failures,
        "last_failure": stats.last_failure or None,
        "left_out_for_seconds": remaining,
    }
