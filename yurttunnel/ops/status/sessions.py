"""The sessions on the status page: the nodes of a server, or the servers of an agent."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Iterable, Sequence

from yurttunnel.ops.status import words
from yurttunnel.ops.status.markup import Column, Content, Markup, element, joined, mark, table
from yurttunnel.ops.status.sources import PeerWords
from yurttunnel.ops.status.sparkline import sparkline
from yurttunnel.ops.status.throughput import KEPT, Rates
from yurttunnel.tunnel.statistics import SessionSnapshot

MOST_SHOWN = 100
"""How many sessions are shown at once."""

SOON = 3 * words.DAY
"""A certificate that ends within so many seconds should have been renewed: it is renewed when a
third of its life is left, which is ten days where nothing else is said."""

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
    columns = [
        Column(peers.peer.capitalize(), "name"),
        Column("State"),
        Column("Connected for"),
        Column("Round trip", "number"),
        Column("Streams", "number"),
        Column("Last 5 minutes", "chart"),
        Column("Version"),
        *([Column("Certificate")] if any(each.certificate_not_after for each in sessions) else []),
    ]
    rows = (_row(each, rates_of(bytes.fromhex(each.session_id)), peers, now) for each in sessions)
    return table(f"Sessions with {peers.peers}", columns, (row[: len(columns)] for row in rows))


def certificate_left(not_after: datetime.datetime, now: datetime.datetime) -> Markup:
    """Return for how long a certificate is still good."""
    left = (not_after - now).total_seconds()
    if left <= 0:
        text = mark("bad", f"ended {words.duration(-left)} ago")
    elif left < SOON:
        text = mark("warn", f"{words.duration(left)} left")
    else:
        text = joined(words.counted(int(left // words.DAY), "day"), " left")
    return words.moment(not_after, text)


def _row(
    session: SessionSnapshot, rates: Rates, peers: PeerWords, now: datetime.datetime
) -> list[Content]:
    since = words.duration((now - session.since).total_seconds())
    resumed = (
        element("small", words.counted(session.resumptions, "resumption"))
        if session.resumptions
        else ""
    )
    not_after = session.certificate_not_after
    address = element("small", session.address) if session.address != session.node else ""
    return [
        joined(session.node, address),
        joined(_state(session, peers), resumed),
        words.moment(session.since, since),
        words.round_trip(session.round_trip),
        f"{session.streams:,}",
        _carried(session, rates),
        session.version,
        "" if not_after is None else certificate_left(not_after, now),
    ]


def _state(session: SessionSnapshot, peers: PeerWords) -> Markup:
    if session.waits_for is None:
        return mark("ok", "connected")
    left = f"{words.duration(session.waits_for)} left, then its streams end"
    return joined(mark("warn", peers.waiting), element("small", left))


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
