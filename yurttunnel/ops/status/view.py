"""The sections of the status page, and the sources of their data."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yurttunnel.metrics import Durations
from yurttunnel.ops.failures import Failures
from yurttunnel.ops.readiness import Finding, Readiness, is_ready
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.certificates import certificate_table
from yurttunnel.ops.status.events import RecentEvents, event_table
from yurttunnel.ops.status.failures import failure_content
from yurttunnel.ops.status.markup import Markup, element, mark
from yurttunnel.ops.status.sections import MakeSection, PageContext, Section, live, nothing, tile
from yurttunnel.ops.status.sparklines import Scale, sparkline
from yurttunnel.ops.status.throughput import Throughput

if TYPE_CHECKING:
    # Programs without sessions do not load these modules: some 2 MiB, with those of the tunnel.
    from yurttunnel.ops.status.peers import Peers

FAILURES = "failures"
"""The name of the counter of failed requests in :class:`Throughput`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """The sources of the page; functions are called each time that the page is shown.

    ``program`` is the name of the command. ``certificates`` returns the expiry of each certificate
    in use; it is ``None`` for a program that has none. ``peers`` are those of a program with
    sessions. ``sections`` are those of features. ``failures`` are those of a program that serves
    callers, ``requests`` counts their requests, and ``durations`` has histograms of durations by
    name.
    """

    program: str
    readiness: Readiness
    certificates: Callable[[], Mapping[str, datetime.datetime]] | None
    peers: Peers | None = None
    sections: Sequence[MakeSection] = ()
    failures: Failures | None = None
    requests: Callable[[], float] | None = None
    durations: Mapping[str, Durations] = field(default_factory=dict)

    def counted(self) -> dict[str, Callable[[], float]]:
        """Return the counters whose rates the page shows, by name."""
        found: dict[str, Callable[[], float]] = {}
        if self.failures is not None:
            failures = self.failures
            found[FAILURES] = lambda: failures.count
        if self.requests is not None:
            found["requests"] = self.requests
        return found


class View:
    """The page at one moment, section by section.

    ``filter_text`` is the filter, ``age`` the age of the process, and ``reactor_lag`` the worst lag
    of the last minute, both in seconds.
    """

    def __init__(
        self,
        sources: StatusSources,
        throughput: Throughput,
        events: RecentEvents,
        filter_text: str,
        now: datetime.datetime,
        age: float,
        reactor_lag: float,
    ) -> None:
        self._sources = sources
        self._throughput = throughput
        self._events = events
        self._context = PageContext(now, filter_text.casefold())
        self._age = age
        self._reactor_lag = reactor_lag
        peers = sources.peers
        self._peers = None if peers is None else peers.at(self._context, filter_text)
        self._features: list[Section] = []
        self._findings = sources.readiness.findings()
        self.ready = is_ready(self._findings)

    def pieces(self) -> Iterator[str]:
        """Yield all sections in order, in pieces."""
        yield from live("readiness", self._readiness())
        if self._peers is not None:
            yield from self._peers.load_sessions()
        self._features = yield from self._feature_sections()
        yield from self._sections_after("readiness")
        failures = self._sources.failures
        if failures is not None:
            recent_rates = self._throughput.rates(FAILURES)
            yield from live("failures", failure_content(failures, recent_rates, self._context))
        yield from live("overview", self._overview())
        if self._peers is not None:
            yield from self._peers.session_pieces()
        yield from self._sections_after("sessions")
        if self._peers is not None:
            yield from self._peers.stream_pieces()
        yield from self._sections_after("streams")
        if self._sources.certificates is not None:
            yield from self._certificate_section(self._sources.certificates())
        yield from self._sections_after("certificates")
        yield from self._event_section()
        yield from self._sections_after("events")

    def pieces_of(self, name: str) -> Iterator[str]:
        """Yield the sections of the page of the peer ``name``.

        The readiness of this process is shown only if it is not ready: a peer may be lost although
        the process is ready.
        """
        if not self.ready:
            yield from live("readiness", self._readiness())
        if self._peers is not None:
            yield from self._peers.pieces_of(name)

    def _feature_sections(self) -> Generator[str, None, list[Section]]:
        features = []
        for make in self._sources.sections:
            made = make(self._context)
            if isinstance(made, Generator):
                made = yield from made
            if made is not None:
                features.append(made)
        return features

    def _sections_after(self, name: str) -> Iterator[str]:
        for each in self._features:
            if each.after == name:
                yield from live(each.name, each.content)

    def _readiness(self) -> list[Markup]:
        sentence = mark("ok", "Ready") if self.ready else mark("bad", "Not ready")
        return [
            element("h2", sentence),
            element("ul", [_finding(each) for each in self._findings], class_="checks"),
        ]

    def _overview(self) -> Markup:
        peers = self._peers
        tiles = [] if peers is None else [peers.connected()]
        tiles += [
            tile(*each.tile, kind=each.tile_kind)
            for each in self._features
            if each.tile is not None
        ]
        tiles += self._requests()
        tiles += [] if peers is None else peers.traffic()
        tiles += [
            tile("up for", formatting.duration(self._age)),
            tile("reactor lag", formatting.round_trip(self._reactor_lag)),
        ]
        return element("dl", tiles, class_="tiles")

    def _requests(self) -> list[Markup]:
        if self._sources.requests is None:
            return []
        rates = self._throughput.rates("requests")
        chart = sparkline(rates, Scale(max(rates, default=0.0), "/s"))
        return [
            tile("requests", formatting.per_second(rates[-1] if rates else 0.0), chart),
            *map(self._latency, self._sources.durations),
        ]

    def _latency(self, name: str) -> Markup:
        half, most = (self._throughput.duration_quantile(name, part) for part in (0.5, 0.95))
        if half is None or most is None:
            return tile(f"median {name}", "none")
        slow = f"95 % within {formatting.round_trip(most)}"
        return tile(f"median {name}", formatting.round_trip(half), slow)

    def _certificate_section(self, certificates: Mapping[str, datetime.datetime]) -> Iterator[str]:
        return live(
            "certificates",
            element("h2", "Certificates"),
            certificate_table(certificates, self._context.now)
            if certificates
            else nothing("There is no certificate yet."),
        )

    def _event_section(self) -> Iterator[str]:
        events = list(self._events.newest_first())
        return live(
            "events",
            element("h2", "Warnings and errors"),
            event_table(events, self._context.now)
            if events
            else nothing(mark("ok", "None has been logged since the start.")),
        )


def _finding(finding: Finding) -> Markup:
    if finding.problem is None:
        return element("li", mark("ok", finding.name))
    kind = "bad" if finding.required else "warn"
    return element("li", mark(kind, finding.name), ": ", finding.problem, class_="problem")
