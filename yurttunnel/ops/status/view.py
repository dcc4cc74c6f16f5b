"""The sections of the status page, and where they get what they show from."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from yurttunnel.metrics import Durations
from yurttunnel.ops.failures import Failures
from yurttunnel.ops.readiness import Finding, Readiness
from yurttunnel.ops.slices import gather
from yurttunnel.ops.status import words
from yurttunnel.ops.status.certificates import certificate_table
from yurttunnel.ops.status.events import RecentEvents, event_table
from yurttunnel.ops.status.failed import failure_content
from yurttunnel.ops.status.markup import Content, Markup, element, mark
from yurttunnel.ops.status.sections import (
    NO_MATCH,
    MakeSection,
    Moment,
    Section,
    listing,
    live,
    nothing,
)
from yurttunnel.ops.status.sessions import session_table, worst_first
from yurttunnel.ops.status.sparklines import Scale, sparkline
from yurttunnel.ops.status.streams import StreamReport, oldest_streams, stream_table
from yurttunnel.ops.status.throughput import Throughput
from yurttunnel.ops.status.words import PeerWords
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters
from yurttunnel.tunnel.stream import TunnelStream

LONGEST_FILTER = 200
"""Characters of ``?q=`` that count."""

MOST_STREAMS = 50
"""How many are shown at once, and so many that are idle."""

FAILURES = "failures"
"""Under this name :class:`Throughput` counts requests that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """The functions are called each time that the page is shown.

    A program without sessions has no ``words`` for them, and none of what is about them.

    ``program`` is the name of the command. ``snapshots`` describes what ``sessions`` gives.
    ``certificates`` says when each certificate in use ends; it is ``None`` for a program that never
    has any. ``reactor_lag`` is the worst of the last minute, in seconds. ``sections`` are those of
    features. ``failures`` are those of a program that serves callers, ``requests`` counts what they
    have asked for, and ``durations`` has how long what took, by its name. ``pooled_streams``
    are those that callers use by turns, each with its caller. ``one`` makes the sections of the
    page of one peer, ``None`` for one that nobody knows.
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
    failures: Failures | None = None
    requests: Callable[[], float] | None = None
    durations: Mapping[str, Durations] = field(default_factory=dict)
    pooled_streams: Callable[[], Iterable[tuple[TunnelStream, str]]] = tuple
    one: Callable[[str, Moment, Throughput], Sequence[tuple[str, Content]] | None] | None = None

    def counted(self) -> dict[str, Callable[[], float]]:
        """Return the counters of which the page shows how often they grow, by their names."""
        found: dict[str, Callable[[], float]] = {}
        if self.failures is not None:
            failures = self.failures
            found[FAILURES] = lambda: failures.count
        if self.requests is not None:
            found["requests"] = self.requests
        return found


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
        self._sessions: list[SessionSnapshot] = []
        self._features: list[Section] = []
        self._findings = sources.readiness.findings()

    @property
    def ready(self) -> bool:
        """Whether every required check passes."""
        return all(each.problem is None for each in self._findings if each.required)

    def pieces(self) -> Iterator[str]:
        """Yield all sections in their order, piece by piece."""
        yield from live("readiness", self._readiness())
        self._sessions = yield from gather(self._sources.snapshots())
        self._features = yield from self._made()
        yield from self._behind("readiness")
        failures = self._sources.failures
        if failures is not None:
            of_late = self._throughput.often(FAILURES)
            yield from live("failures", failure_content(failures, of_late, self._moment))
        yield from live("overview", self._overview())
        peers = self._sources.words
        if peers is not None:
            yield self._filter()
            yield from self._session_section(peers)
        yield from self._behind("sessions")
        if peers is not None:
            yield from self._stream_sections(peers, self._sources.sessions(), self._matches_stream)
        yield from self._behind("streams")
        if self._sources.certificates is not None:
            yield from self._certificate_section(self._sources.certificates())
        yield from self._behind("certificates")
        yield from self._event_section()
        yield from self._behind("events")

    def pieces_of(self, name: str) -> Iterator[str]:
        """Yield the sections of the page of the peer ``name``.

        Whether this process is ready is told only if it is not: a peer may be lost all the same.
        """
        if not self.ready:
            yield from live("readiness", self._readiness())
        peers, make = self._sources.words, self._sources.one
        found = make(name, self._moment, self._throughput) if make is not None else None
        yield element("p", element("a", "All nodes", href="/"), class_="back")
        if found is None or peers is None:
            yield from live("node", nothing(f"Nothing is known of {name!r}."))
            return
        for section, content in found:
            yield from live(section, content)
        sources = self._sources
        sessions = [each for each in sources.sessions() if each.peer_name == name]
        yield from self._stream_sections(peers, sessions, lambda _: True)

    def _made(self) -> Generator[str, None, list[Section]]:
        features = []
        for make in self._sources.sections:
            made = make(self._moment)
            if isinstance(made, Generator):
                made = yield from made
            if made is not None:
                features.append(made)
        return features

    def _behind(self, name: str) -> Iterator[str]:
        for each in self._features:
            if each.after == name:
                yield from live(each.name, each.content)

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
        tiles += [
            _tile(*each.tile, kind=each.tile_kind)
            for each in self._features
            if each.tile is not None
        ]
        tiles += self._requests()
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

    def _requests(self) -> list[Markup]:
        if self._sources.requests is None:
            return []
        rates = self._throughput.often("requests")
        chart = sparkline(rates, Scale(max(rates, default=0.0), "/s"))
        return [
            _tile("requests", words.each_second(rates[-1] if rates else 0.0), chart),
            *map(self._latency, self._sources.durations),
        ]

    def _latency(self, name: str) -> Markup:
        half, most = (self._throughput.took(name, part) for part in (0.5, 0.95))
        if half is None or most is None:
            return _tile(f"median {name}", "none")
        slow = f"95 % within {words.round_trip(most)}"
        return _tile(f"median {name}", words.round_trip(half), slow)

    def _traffic(self, peers: PeerWords) -> list[Markup]:
        rates = self._throughput.total()
        received, sent = rates.newest()
        streams = sum(each.streams for each in self._sessions)
        scale = Scale(max([*rates.received, *rates.sent], default=0.0), "B/s")
        return [
            _tile("streams open", f"{streams:,}"),
            _tile(f"from {peers.peers}", words.rate(received), sparkline(rates.received, scale)),
            _tile(f"to {peers.peers}", words.rate(sent), sparkline(rates.sent, scale)),
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

    def _session_section(self, peers: PeerWords) -> Iterator[str]:
        now = self._moment.now
        matching = yield from gather(
            self._sessions,
            lambda each: self._moment.matches(each.node, each.address, each.version),
        )
        contents = listing(
            peers.peers.capitalize(),
            worst_first(matching, now),
            len(matching),
            "trouble first",
            lambda shown: session_table(shown, self._throughput.of, peers, now),
            NO_MATCH if self._sessions else f"No {peers.peer} is connected.",
        )
        yield from live("sessions", contents)

    def _stream_sections(
        self,
        peers: PeerWords,
        sessions: Iterable[TunnelSession],
        desired: Callable[[StreamReport], bool],
    ) -> Iterator[str]:
        pooled = self._sources.pooled_streams()
        used, idle = yield from oldest_streams(sessions, MOST_STREAMS, desired, pooled)
        for name, heading, streams in (
            ("streams", "Streams", used),
            ("idle", "Idle connections, kept for the next request", idle),
        ):
            if streams.total or streams is used:
                content = listing(
                    heading,
                    streams.shown,
                    streams.total,
                    "the oldest first",
                    lambda shown: stream_table(shown, peers),
                    NO_MATCH if streams.total else "No stream is open.",
                )
                yield from live(name, content)

    def _certificate_section(self, certificates: Mapping[str, datetime.datetime]) -> Iterator[str]:
        return live(
            "certificates",
            element("h2", "Certificates"),
            certificate_table(certificates, self._moment.now)
            if certificates
            else nothing("There is no certificate yet."),
        )

    def _event_section(self) -> Iterator[str]:
        events = list(self._events.newest_first())
        return live(
            "events",
            element("h2", "Warnings and errors"),
            event_table(events, self._moment.now)
            if events
            else nothing(mark("ok", "None has been logged since the start.")),
        )

    def _matches_stream(self, stream: StreamReport) -> bool:
        return self._moment.matches(
            stream.peer, stream.destination, stream.request_id, stream.asker, stream.kind
        )


def _finding(finding: Finding) -> Markup:
    if finding.problem is None:
        return element("li", mark("ok", finding.name))
    kind = "bad" if finding.required else "warn"
    return element("li", mark(kind, finding.name), ": ", finding.problem, class_="problem")


def _tile(name: str, value: str, more: Content = "", kind: str = "") -> Markup:
    extra = element("dd", more, class_="more") if more else ""
    shown = mark(kind, value) if kind else value
    return element("div", element("dt", name), element("dd", shown), extra)
