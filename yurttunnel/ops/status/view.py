"""The sections of the status page."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from yurttunnel.ops.readiness import Finding
from yurttunnel.ops.status import tables, words
from yurttunnel.ops.status.events import RecentEvents
from yurttunnel.ops.status.markup import Content, Markup, element, mark
from yurttunnel.ops.status.sessions import rate_chart, session_table, worst_first
from yurttunnel.ops.status.sources import LostNode, StatusSources
from yurttunnel.ops.status.streams import StreamReport, oldest_streams
from yurttunnel.ops.status.throughput import Throughput
from yurttunnel.steering.page import steering_html
from yurttunnel.tunnel.statistics import SessionSnapshot

LONGEST_FILTER = 200
"""Characters of ``?q=`` that count."""

MOST_LOST = 50
MOST_STREAMS = 50
"""How many are shown at once."""

_NO_MATCH = "Nothing matches the filter."


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
        self._folded = desired.casefold()
        self._now = now
        self._age = age
        self._sessions = list(sources.snapshots())
        self._lost = [] if sources.lost_nodes is None else list(sources.lost_nodes())
        self._findings = sources.readiness.findings()

    @property
    def ready(self) -> bool:
        """Whether every required check passes."""
        return all(each.problem is None for each in self._findings if each.required)

    def sections(self) -> Iterator[Markup]:
        """Yield them in their order."""
        yield _live("readiness", self._readiness())
        yield _live("overview", self._overview())
        yield self._filter()
        yield self._session_section()
        if self._sources.lost_nodes is not None:
            yield self._lost_section()
        yield self._stream_section()
        if self._sources.destinations is not None:
            yield self._destination_section()
        yield self._certificate_section()
        steering = self._sources.steering()
        if steering is not None:
            yield _live("steering", steering_html(steering))
        yield self._event_section()

    def _readiness(self) -> list[Markup]:
        ready = self.ready
        sentence = mark("ok", "Ready") if ready else mark("bad", "Not ready")
        return [
            element("h2", sentence),
            element("ul", [_finding(each) for each in self._findings], class_="checks"),
        ]

    def _overview(self) -> Markup:
        peers = self._sources.words
        connected = len({each.node for each in self._sessions if each.connected})
        waiting = sum(not each.connected for each in self._sessions)
        rates = self._throughput.total()
        received, sent = rates.newest()
        away = f"{waiting:,} {peers.waiting}" if waiting else ""
        tiles = [_tile(f"{peers.peers} connected", f"{connected:,}", away)]
        if self._sources.lost_nodes is not None:
            tiles.append(_tile("nodes lost", f"{len(self._lost):,}"))
        streams = sum(each.streams for each in self._sessions)
        tiles += [
            _tile("streams open", f"{streams:,}"),
            _tile(f"from {peers.peers}", words.rate(received), rate_chart(rates.received)),
            _tile(f"to {peers.peers}", words.rate(sent), rate_chart(rates.sent)),
            _tile("up for", words.duration(self._age)),
            _tile("reactor lag", words.round_trip(self._sources.reactor_lag())),
        ]
        return element("dl", tiles, class_="tiles")

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

    def _session_section(self) -> Markup:
        peers = self._sources.words
        matching = [each for each in self._sessions if self._matches_session(each)]
        shown = worst_first(matching, self._now)
        nobody = f"No {peers.peer} is connected." if not self._sessions else _NO_MATCH
        return _live(
            "sessions",
            _heading(peers.peers.capitalize(), len(shown), len(matching), "trouble first"),
            session_table(shown, self._throughput.of, peers, self._now)
            if shown
            else _nothing(nobody),
        )

    def _lost_section(self) -> Markup:
        matching = [each for each in self._lost if self._matches_lost(each)]
        shown = matching[:MOST_LOST]
        nobody = "No node has been lost." if not self._lost else _NO_MATCH
        return _live(
            "lost",
            _heading("Lost nodes", len(shown), len(matching), "the last first"),
            tables.lost_table(shown, self._now) if shown else _nothing(nobody),
        )

    def _stream_section(self) -> Markup:
        total = sum(each.streams for each in self._sessions)
        sources = self._sources
        shown = oldest_streams(
            sources.sessions(), MOST_STREAMS, self._matches_stream, sources.other_streams()
        )
        return _live(
            "streams",
            _heading("Streams", len(shown), total, "the oldest first"),
            tables.stream_table(shown, self._sources.words)
            if shown
            else _nothing(_NO_MATCH if total else "No stream is open."),
        )

    def _destination_section(self) -> Markup:
        assert self._sources.destinations is not None
        return _live(
            "destinations",
            element("h2", "May be dialed"),
            tables.destination_list(self._sources.destinations()),
        )

    def _certificate_section(self) -> Markup:
        certificates = self._sources.certificates()
        return _live(
            "certificates",
            element("h2", "Certificates"),
            tables.certificate_table(certificates, self._now)
            if certificates
            else _nothing("There is no certificate yet."),
        )

    def _event_section(self) -> Markup:
        events = list(self._events.newest_first())
        return _live(
            "events",
            element("h2", "Warnings and errors"),
            tables.event_table(events, self._now)
            if events
            else _nothing("None has been logged since the start."),
        )

    # -- the filter ----------------------------------------------------------------------------

    def _matches_session(self, session: SessionSnapshot) -> bool:
        return self._matches(session.node, session.address, session.version)

    def _matches_lost(self, lost: LostNode) -> bool:
        return self._matches(lost.node, lost.why)

    def _matches_stream(self, stream: StreamReport) -> bool:
        return self._matches(stream.peer, stream.destination, stream.request_id)

    def _matches(self, *texts: str) -> bool:
        return not self._folded or any(self._folded in text.casefold() for text in texts)


def _live(name: str, *contents: Content) -> Markup:
    """Make a section that the script keeps up to date."""
    return element("section", *contents, id=name, data_live=True)


def _heading(title: str, shown: int, total: int, order: str) -> Markup:
    if not total:
        return element("h2", title)
    count = f"{total:,}" if shown == total else f"{shown:,} of {total:,}, {order}"
    return element("h2", title, " ", element("span", count, class_="count"))


def _nothing(sentence: str) -> Markup:
    return element("p", sentence, class_="nothing")


def _finding(finding: Finding) -> Markup:
    if finding.problem is None:
        return element("li", mark("ok", finding.name))
    kind = "bad" if finding.required else "warn"
    return element("li", mark(kind, finding.name), ": ", finding.problem, class_="problem")


def _tile(name: str, value: str, more: str = "") -> Markup:
    extra = element("dd", more, class_="more") if more else ""
    return element("div", element("dt", name), element("dd", value), extra)
