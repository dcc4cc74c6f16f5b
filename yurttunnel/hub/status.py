"""The hub's sections of the status page: the API servers, requests, and the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from yurttunnel.hub.cache.metrics import CacheStats
from yurttunnel.hub.limits import Limits
from yurttunnel.hub.offline.service import Offline
from yurttunnel.hub.upstream.health import Health, ServerHealth, State
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import Column, Markup, element, mark, pairs, table
from yurttunnel.ops.status.sections import NO_MATCH, MakeSection, PageContext, Section, listing

_MARKS = {State.HEALTHY: "ok", State.UNHEALTHY: "bad", State.UNKNOWN: "warn"}


def hub_sections(
    health: Health, limits: Limits, cache: Callable[[], CacheStats], offline: Offline
) -> tuple[MakeSection, ...]:
    """Return the sections of a hub."""
    return (
        partial(_servers, health),
        partial(_requests, limits, offline),
        lambda moment: _cache(cache()),
    )


def _servers(health: Health, moment: PageContext) -> Section:
    servers = list(health.servers.values())
    shown = [each for each in servers if moment.matches(str(each.server), each.problem or "")]
    columns: list[Column[ServerHealth]] = [
        Column("Server", lambda each: str(each.server), "name"),
        Column("State", lambda each: mark(_MARKS[each.state], each.state.value)),
        Column("Reason", lambda each: each.problem or "", "text"),
    ]
    content = listing(
        "API servers",
        shown,
        len(shown),
        "in their order",
        lambda rows: table("The API servers of --server-addr", columns, rows),
        NO_MATCH,
    )
    healthy = sum(each.state is State.HEALTHY for each in servers)
    return Section("servers", content, "sessions", ("healthy servers", f"{healthy}/{len(servers)}"))


def _requests(limits: Limits, offline: Offline, moment: PageContext) -> Section:
    verbs = [f"{verb} {number:,}" for verb, number in sorted(limits.in_flight.items()) if number]
    rows = [
        ("In flight", ", ".join(verbs) or "none"),
        ("Rejected, because too many were in flight", f"{limits.rejected:,}"),
        ("Served while offline", f"{sum(offline.responses.values()):,}"),
        ("Watches open while offline", f"{len(offline.open_watches):,}"),
    ]
    in_flight = f"{limits.in_flight.total():,}"
    return Section(
        "requests", _table("Requests", rows), "streams", ("requests in flight", in_flight)
    )


def _cache(stats: CacheStats) -> Section:
    rows = [
        ("On disk", f"{formatting.size(stats.size)} of {formatting.size(stats.max_size)}"),
        ("Queued for the disk", formatting.size(stats.queued)),
        ("Clients", f"{stats.clients:,}"),
        ("Events to be sent when the cloud is reachable", f"{stats.events:,}"),
        (
            "Dropped, because too much was queued or there was no room",
            f"{stats.dropped + stats.refused:,}",
        ),
    ]
    content = _table("Cache", rows)
    return Section("cache", content, "streams", ("cached clients", f"{stats.clients:,}"))


def _table(heading: str, rows: list[tuple[str, str]]) -> list[Markup]:
    return [element("h2", heading), pairs(heading, rows)]
