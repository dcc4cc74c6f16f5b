"""The sections of the status page, and where they get what they show from."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from yurttunnel.ops.readiness import Finding, Readiness
from yurttunnel.ops.status import words
from yurttunnel.ops.status.certificates import certificate_table
from yurttunnel.ops.status.events import RecentEvents, event_table
from yurttunnel.ops.status.markup import Markup, element, mark
from yurttunnel.ops.status.sections import NO_MATCH, MakeSection, Moment, listing, live, nothing
from yurttunnel.ops.status.sessions import rate_chart, session_table, worst_first
from yurttunnel.ops.status.streams import StreamReport, oldest_streams, stream_table
from yurttunnel.ops.status.throughput import Throughput
from yurttunnel.ops.status.words import PeerWords
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters

LONGEST_FILTER = 200
"""Characters of ``?q=`` that count."""

MOST_STREAMS = 50
"""How many are shown at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """The functions are called each time that the page is shown.

    A program without sessions has no ``words`` for them, and none of what is about them.

    ``program`` is the name of the command. ``snapshots`` describes what ``sessions`` gives.
    ``certificates`` says when each certificate in use ends; it is ``None`` for a program that never
    has any. ``reactor_lag`` is the worst of the last minute, in seconds. ``sections`` are those of
    features.
    """

    program: str
    words: PeerWords | None = None
    readiness: Readiness
    counters: TunnelCounters = field(default_factory=TunnelCounters)
    sessions: Callable[[], Iterable[TunnelSession]] = tuple
    snapshots: Callable[[], Iterable[SessionSnapshot]] = tuple
    certificates: Callable[[], Mapping[str, datetime.datetime]] | None
    reactor_lag: Callable[[], float]
    sections: Sequence[MakeSection] = ()


class View:
    """What is on the page at one moment, section by section.

    ``desired`` is what is looked for, ``age`` how old the process is in seconds.
    """

    def __init__(
        self,
        sources: StatusSources,
        throughput: Throughput,
        events: RecentEvents,
        desired: str,
        now: datetime.datetime,
        age: float,
    ) -> None:
        self._sources = sources
        self._throughput = throughput
        self._events = events
        self._desired = desired
        self._moment = Moment(now, desired.casefold())
        self._age = age
        self._sessions = list(sources.snapshots())
        made = (make(self._moment) for make in sources.sections)
        self._features = [each for each in made if each is not None]
        self._findings = sources.readiness.findings()

    @property
    def ready(self) -> bool:
        """Whether every required check passes."""
        return all(each.problem is None for each in self._findings if each.required)

    def sections(self) -> Iterator[Markup]:
        """Yield them in their order."""
        yield live("readiness", self._readiness())
        yield live("overview", self._overview())
        peers = self._sources.words
        if peers is not None:
            yield self._filter()
            yield self._session_section(peers)
        yield from self._behind("sessions")
        if peers is not None:
            yield self._stream_section(peers)
        yield from self._behind("streams")
        if self._sources.certificates is not None:
            yield self._certificate_section(self._sources.certificates())
        yield from self._behind("certificates")
        yield self._event_section()

    def _behind(self, name: str) -> Iterator[Markup]:
        for each in self._features:
            if each.after == name:
                yield live(each.name, each.content)

    def _readiness(self) -> list[Markup]:
        ready = self.ready
        sentence = mark("ok", "Ready") if ready else mark("bad", "Not ready")
        return [
            element("h2", sentence),
            element("ul", [_finding(each) for each in self._findings], class_="checks"),
        ]

    def _overview(self) -> Markup:
        peers = self._sources.words
        tiles = [] if peers is None else [self._connected(peers)]
        tiles += [_tile(*each.tile) for each in self._features if each.tile is not None]
        tiles += [] if peers is None else self._traffic(peers)
        tiles += [
            _tile("up for", words.duration(self._age)),
            _tile("reactor lag", words.round_trip(self._sources.reactor_lag())),
        ]
        return element("dl", tiles, class_="tiles")

    def _connected(self, peers: PeerWords) -> Markup:
        connected = len({each.node for each in self._sessions if each.connected})
        waiting = sum(not each.connected for each in self._sessions)
        away = f"{waiting:,} {peers.waiting}" if waiting else ""
        return _tile(f"{peers.peers} connected", f"{connected:,}", away)

    def _traffic(self, peers: PeerWords) -> list[Markup]:
        rates = self._throughput.total()
        received, sent = rates.newest()
        streams = sum(each.streams for each in self._sessions)
        return [
            _tile("streams open", f"{streams:,}"),
            _tile(f"from {peers.peers}", words.rate(received), rate_chart(rates.received)),
            _tile(f"to {peers.peers}", words.rate(sent), rate_chart(rates.sent)),
        ]

    def _filter(self) -> Markup:
        return element(
            "form",
            element("label", "Filter", for_="q"),
            element(
                "input",
                type="search",
                id="q",
                name="q",
                value=self._desired,
                placeholder="name, address, request id",
                maxlength=str(LONGEST_FILTER),
            ),
            element("button", "Show"),
            element("a", "Show all", href="/") if self._desired else "",
            action="/",
            role="search",
        )

    # -- sections ------------------------------------------------------------------------------

    def _session_section(self, peers: PeerWords) -> Markup:
        now = self._moment.now
        matching = [
            each
            for each in self._sessions
            if self._moment.matches(each.node, each.address, each.version)
        ]
        contents = listing(
            peers.peers.capitalize(),
            worst_first(matching, now),
            len(matching),
            "trouble first",
            lambda shown: session_table(shown, self._throughput.of, peers, now),
            NO_MATCH if self._sessions else f"No {peers.peer} is connected.",
        )
        return live("sessions", contents)

    def _stream_section(self, peers: PeerWords) -> Markup:
        total = sum(each.streams for each in self._sessions)
        contents = listing(
            "Streams",
            oldest_streams(self._sources.sessions(), MOST_STREAMS, self._matches_stream),
            total,
            "the oldest first",
            lambda shown: stream_table(shown, peers),
            NO_MATCH if total else "No stream is open.",
        )
        return live("streams", contents)

    def _certificate_section(self, certificates: Mapping[str, datetime.datetime]) -> Markup:
        return live(
            "certificates",
            element("h2", "Certificates"),
            certificate_table(certificates, self._moment.now)
            if certificates
            else nothing("There is no certificate yet."),
        )

    def _event_section(self) -> Markup:
        events = list(self._events.newest_first())
        return live(
            "events",
            element("h2", "Warnings and errors"),
            event_table(events, self._moment.now)
            if events
            else nothing("None has been logged since the start."),
        )

    def _matches_stream(self, stream: StreamReport) -> bool:
        return self._moment.matches(stream.peer, stream.destination, stream.request_id)


def _finding(finding: Finding) -> Markup:
    if finding.problem is None:
        return element("li", mark("ok", finding.name))
    kind = "bad" if finding.required else "warn"
    return element("li", mark(kind, finding.name), ": ", finding.problem, class_="problem")


def _tile(name: str, value: str, more: str = "") -> Markup:
    extra = element("dd", more, class_="more") if more else ""
    return element("div", element("dt", name), element("dd", value), extra)
