"""The sessions on the status page: the nodes of a server, or the servers of an agent."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Iterable, Sequence

from yurttunnel.ops.status import words
from yurttunnel.ops.status.certificates import SOON, certificate_left
from yurttunnel.ops.status.markup import Column, Content, Markup, element, joined, mark, table
from yurttunnel.ops.status.throughput import KEPT, Rates
from yurttunnel.ops.status.words import PeerWords
from yurttunnel.tunnel.statistics import SessionSnapshot

MOST_SHOWN = 100
"""How many sessions are shown at once."""

_HEIGHT = 24

_OF_NOTE = 99
"""The rank of a session with which nothing is wrong."""


def trouble(session: SessionSnapshot, now: datetime.datetime) -> int:
    """Rank a session by what is wrong with it: the smaller, the worse."""
    if not session.connected:
        return 0
    if session.certificate_not_after is None:
        return _OF_NOTE
    left = (session.certificate_not_after - now).total_seconds()
    return 1 if left <= 0 else 2 if left < SOON else _OF_NOTE


def worst_first(
    sessions: Iterable[SessionSnapshot], now: datetime.datetime
) -> list[SessionSnapshot]:
    """Give up to :data:`MOST_SHOWN` sessions: those with trouble first, then by name."""
    return heapq.nsmallest(
        MOST_SHOWN,
        sessions,
        key=lambda session: (trouble(session, now), session.node, session.since),
    )


def session_table(
    sessions: Sequence[SessionSnapshot],
    rates_of: Callable[[bytes], Rates],
    peers: PeerWords,
    now: datetime.datetime,
) -> Markup:
    """Make the table of ``sessions``, in their order."""
    columns: list[Column[SessionSnapshot]] = [
        Column(peers.peer.capitalize(), _name, "name"),
        Column("State", lambda session: _state(session, peers)),
        Column(
            "Connected for",
            lambda session: words.moment(
                session.since, words.duration((now - session.since).total_seconds())
            ),
        ),
        Column("Round trip", lambda session: words.round_trip(session.round_trip), "number"),
        Column("Streams", lambda session: f"{session.streams:,}", "number"),
        Column(
            "Last 5 minutes",
            lambda session: _carried(session, rates_of(bytes.fromhex(session.session_id))),
            "chart",
        ),
        Column("Version", lambda session: session.version),
    ]
    if any(each.certificate_not_after for each in sessions):
        columns.append(Column("Certificate", lambda session: _certificate(session, now)))
    return table(f"Sessions with {peers.peers}", columns, sessions)


def _name(session: SessionSnapshot) -> Markup:
    address = element("small", session.address) if session.address != session.node else ""
    return joined(session.node, address)


def _certificate(session: SessionSnapshot, now: datetime.datetime) -> Content:
    not_after = session.certificate_not_after
    return "" if not_after is None else certificate_left(not_after, now)


def _state(session: SessionSnapshot, peers: PeerWords) -> Markup:
    resumed = (
        element("small", words.counted(session.resumptions, "resumption"))
        if session.resumptions
        else ""
    )
    if session.waits_for is None:
        return joined(mark("ok", "connected"), resumed)
    left = f"{words.duration(session.waits_for)} left, then its streams end"
    return joined(mark("warn", peers.waiting), element("small", left), resumed)


def _carried(session: SessionSnapshot, rates: Rates) -> Markup:
    received, sent = rates.newest()
    total = f"{words.size(session.bytes_received)} in, {words.size(session.bytes_sent)} out in all"
    return joined(
        rate_chart(rates.both()),
        element("small", f"in {words.rate(received)}, out {words.rate(sent)}", title=total),
    )


def rate_chart(values: Sequence[float]) -> Markup:
    """Draw bytes per second over the last minutes."""
    return sparkline(values, KEPT, f"at most {words.rate(max(values, default=0))}")


def sparkline(values: Sequence[float], places: int, label: str) -> Markup:
    """Draw ``values`` as bars, the newest at the right of ``places``; ``label`` says what it is.

    The scale begins at nothing and ends at the greatest value. Fewer values than places leave the
    left empty, so that the same place is the same time in every row.
    """
    highest = max(values, default=0.0)
    path, right, down = "", places - len(values) + 0.5, _HEIGHT
    for value in values:
        if value > 0:
            # Something is not nothing, however little it is.
            height = max(1, round(_HEIGHT * value / highest))
            # Relative moves: half of the size of the page is such paths.
            path += f"m{right:g} {down}v-{height}"
            right, down = 0.0, height
        right += 1
    return element(
        "svg",
        element("path", d=path) if path else "",
        class_="spark",
        viewBox=f"0 0 {places} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
