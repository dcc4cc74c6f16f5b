"""The peers of a program's sessions on its status page, and the streams to them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.slices import gather
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.formatting import PeerTerms
from yurttunnel.ops.status.markup import Content, Markup, element
from yurttunnel.ops.status.sections import (
    MAX_FILTER,
    NO_MATCH,
    PageContext,
    listing,
    live,
    nothing,
    tile,
)
from yurttunnel.ops.status.session_rates import SessionRates
from yurttunnel.ops.status.sessions import most_severe, session_table
from yurttunnel.ops.status.sparklines import Scale, sparkline
from yurttunnel.ops.status.streams import StreamReport, oldest_streams, stream_table
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters
from yurttunnel.tunnel.stream import TunnelStream

MAX_STREAMS = 50
"""The maximum number of streams shown at once, and of idle streams."""

MakePeerPage = Callable[[str, PageContext, SessionRates], Sequence[tuple[str, Content]] | None]
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
        terms: PeerTerms,
        counters: TunnelCounters,
        sessions: Callable[[], Iterable[TunnelSession]],
        snapshots: Callable[[], Iterable[SessionSnapshot]],
        pooled_streams: Callable[[], Iterable[tuple[TunnelStream, str]]] = tuple,
        one: MakePeerPage | None = None,
    ) -> None:
        self.terms = terms
        self.sessions = sessions
        self.snapshots = snapshots
        self.pooled_streams = pooled_streams
        self.one = one
        self.rates = SessionRates(clock, counters, sessions)

    def at(self, moment: PageContext, filter_text: str) -> PeersView:
        """Return the view at ``moment``; ``filter_text`` is the text in the filter."""
        return PeersView(self, moment, filter_text)


class PeersView:
    """The sections and tiles of ``peers`` at one moment; call :meth:`load_sessions` first."""

    def __init__(self, peers: Peers, moment: PageContext, filter_text: str) -> None:
        self._peers = peers
        self._terms = peers.terms
        self._context = moment
        self._filter_text = filter_text
        self._sessions: list[SessionSnapshot] = []

    def load_sessions(self) -> Generator[str, None, None]:
        """Describe the sessions, with pauses: there may be many."""
        self._sessions = yield from gather(self._peers.snapshots())

    def connected(self) -> Markup:
        """Return the tile with the number of connected peers."""
        connected = len({each.node for each in self._sessions if each.connected})
        waiting = sum(not each.connected for each in self._sessions)
        disconnected = f"{waiting:,} {self._terms.waiting}" if waiting else ""
        return tile(f"{self._terms.peers} connected", f"{connected:,}", disconnected)

    def traffic(self) -> list[Markup]:
        """Return the tiles of streams and traffic."""
        rates = self._peers.rates.total()
        received, sent = rates.newest()
        streams = sum(each.streams for each in self._sessions)
        scale = Scale(max([*rates.received, *rates.sent], default=0.0), "B/s")
        name = self._terms.peers
        return [
            tile("streams open", f"{streams:,}"),
            tile(f"from {name}", formatting.rate(received), sparkline(rates.received, scale)),
            tile(f"to {name}", formatting.rate(sent), sparkline(rates.sent, scale)),
        ]

    def session_pieces(self) -> Iterator[str]:
        """Yield the filter, and the section of the sessions that match it."""
        yield self._filter()
        now = self._context.now
        matching = yield from gather(
            self._sessions,
            lambda each: self._context.matches(each.node, each.address, each.version),
        )
        contents = listing(
            self._terms.peers.capitalize(),
            most_severe(matching, now),
            len(matching),
            "problems first",
            lambda shown: session_table(shown, self._peers.rates.of, self._terms, now),
            NO_MATCH if self._sessions else f"No {self._terms.peer} is connected.",
        )
        yield from live("sessions", contents)

    def stream_pieces(self) -> Iterator[str]:
        """Yield the sections of the streams that match the filter."""
        return self._stream_sections(self._peers.sessions(), self._matches_stream)

    def pieces_of(self, name: str) -> Iterator[str]:
        """Yield the sections of the page of the peer ``name``."""
        make = self._peers.one
        found = make(name, self._context, self._peers.rates) if make is not None else None
        yield element("p", element("a", "All nodes", href="/"), class_="back")
        if found is None:
            yield from live("node", nothing(f"Node {name!r} is unknown."))
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
                value=self._filter_text,
                placeholder="name, address, request id",
                maxlength=str(MAX_FILTER),
            ),
            element("button", "Show"),
            element("a", "Show all", href="/") if self._filter_text else "",
            action="/",
            role="search",
        )

    def _stream_sections(
        self, sessions: Iterable[TunnelSession], filter_text: Callable[[StreamReport], bool]
    ) -> Iterator[str]:
        pooled = self._peers.pooled_streams()
        used, idle = yield from oldest_streams(sessions, MAX_STREAMS, filter_text, pooled)
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
                    lambda shown: stream_table(shown, self._terms),
                    NO_MATCH if streams.total else "No stream is open.",
                )
                yield from live(name, content)

    def _matches_stream(self, stream: StreamReport) -> bool:
        return self._context.matches(
            stream.peer, stream.destination, stream.request_id, stream.caller_address, stream.kind
        )
