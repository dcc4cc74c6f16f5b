"""The peers of a program's sessions on its status page, and the streams to them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.slices import gather
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.formatting import PeerWords
from yurttunnel.ops.status.markup import Content, Markup, element
from yurttunnel.ops.status.sections import (
    LONGEST_FILTER,
    NO_MATCH,
    Moment,
    listing,
    live,
    nothing,
    tile,
)
from yurttunnel.ops.status.session_rates import SessionRates
from yurttunnel.ops.status.sessions import session_table, worst_first
from yurttunnel.ops.status.sparklines import Scale, sparkline
from yurttunnel.ops.status.streams import StreamReport, oldest_streams, stream_table
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters
from yurttunnel.tunnel.stream import TunnelStream

MOST_STREAMS = 50
"""The maximum number of streams shown at once, and of idle streams."""

MakeOne = Callable[[str, Moment, SessionRates], Sequence[tuple[str, Content]] | None]
"""Makes the sections of the page of one peer, each with its ID; ``None`` for an unknown peer."""


class Peers:
    """The sources of the sessions on the page; the functions are called each time it is shown.

    ``snapshots`` describes the ``sessions``. ``pooled_streams`` are those that callers use in turn,
    each with its current caller. ``rates`` are measured while the page's service runs.
    """

    def __init__(
        self,
        clock: IReactorTime,
        *,
        words: PeerWords,
        counters: TunnelCounters,
        sessions: Callable[[], Iterable[TunnelSession]],
        snapshots: Callable[[], Iterable[SessionSnapshot]],
        pooled_streams: Callable[[], Iterable[tuple[TunnelStream, str]]] = tuple,
        one: MakeOne | None = None,
    ) -> None:
        self.words = words
        self.sessions = sessions
        self.snapshots = snapshots
        self.pooled_streams = pooled_streams
        self.one = one
        self.rates = SessionRates(clock, counters, sessions)

    def at(self, moment: Moment, desired: str) -> PeersView:
        """Return the view at ``moment``; ``desired`` is the text in the filter."""
        return PeersView(self, moment, desired)


class PeersView:
    """The sections and tiles of ``peers`` at one moment; call :meth:`look` first."""

    def __init__(self, peers: Peers, moment: Moment, desired: str) -> None:
        self._peers = peers
        self._words = peers.words
        self._moment = moment
        self._desired = desired
        self._sessions: list[SessionSnapshot] = []

    def look(self) -> Generator[str, None, None]:
        """Describe the sessions, with pauses: there may be many."""
        self._sessions = yield from gather(self._peers.snapshots())

    def connected(self) -> Markup:
        """Return the tile with the number of connected peers."""
        connected = len({each.node for each in self._sessions if each.connected})
        waiting = sum(not each.connected for each in self._sessions)
        away = f"{waiting:,} {self._words.waiting}" if waiting else ""
        return tile(f"{self._words.peers} connected", f"{connected:,}", away)

    def traffic(self) -> list[Markup]:
        """Return the tiles of streams and traffic."""
        rates = self._peers.rates.total()
        received, sent = rates.newest()
        streams = sum(each.streams for each in self._sessions)
        scale = Scale(max([*rates.received, *rates.sent], default=0.0), "B/s")
        name = self._words.peers
        return [
            tile("streams open", f"{streams:,}"),
            tile(f"from {name}", formatting.rate(received), sparkline(rates.received, scale)),
            tile(f"to {name}", formatting.rate(sent), sparkline(rates.sent, scale)),
        ]

    def session_pieces(self) -> Iterator[str]:
        """Yield the filter, and the section of the sessions that match it."""
        yield self._filter()
        now = self._moment.now
        matching = yield from gather(
            self._sessions,
            lambda each: self._moment.matches(each.node, each.address, each.version),
        )
        contents = listing(
            self._words.peers.capitalize(),
            worst_first(matching, now),
            len(matching),
            "trouble first",
            lambda shown: session_table(shown, self._peers.rates.of, self._words, now),
            NO_MATCH if self._sessions else f"No {self._words.peer} is connected.",
        )
        yield from live("sessions", contents)

    def stream_pieces(self) -> Iterator[str]:
        """Yield the sections of the streams that match the filter."""
        return self._stream_sections(self._peers.sessions(), self._matches_stream)

    def pieces_of(self, name: str) -> Iterator[str]:
        """Yield the sections of the page of the peer ``name``."""
        make = self._peers.one
        found = make(name, self._moment, self._peers.rates) if make is not None else None
        yield element("p", element("a", "All nodes", href="/"), class_="back")
        if found is None:
            yield from live("node", nothing(f"Nothing is known of {name!r}."))
            return
        for section, content in found:
            yield from live(section, content)
        sessions = [each for each in self._peers.sessions() if each.peer_name == name]
        yield from self._stream_sections(sessions, lambda _: True)

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

    def _stream_sections(
        self, sessions: Iterable[TunnelSession], desired: Callable[[StreamReport], bool]
    ) -> Iterator[str]:
        pooled = self._peers.pooled_streams()
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
                    lambda shown: stream_table(shown, self._words),
                    NO_MATCH if streams.total else "No stream is open.",
                )
                yield from live(name, content)

    def _matches_stream(self, stream: StreamReport) -> bool:
        return self._moment.matches(
            stream.peer, stream.destination, stream.request_id, stream.asker, stream.kind
        )
