"""The sessions on the status page: the nodes of a server, or the servers of an agent."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.certificates import SOON, certificate_left
from yurttunnel.ops.status.formatting import PeerTerms
from yurttunnel.ops.status.markup import Column, Content, Markup, element, joined, mark, table
from yurttunnel.ops.status.session_rates import Rates
from yurttunnel.ops.status.sparklines import MINUTES, Scale, sparkline
from yurttunnel.tunnel.statistics import SessionSnapshot

MAX_SHOWN = 100
"""The maximum number of sessions shown at once."""

_NO_PROBLEM = 99
"""The rank of a session without problems."""


def severity(session: SessionSnapshot, now: datetime.datetime) -> int:
    """Return the rank of a session by its problems: the smaller, the worse."""
    if not session.connected:
        return 0
    if session.certificate_not_after is None:
        return _NO_PROBLEM
    left = (session.certificate_not_after - now).total_seconds()
    return 1 if left <= 0 else 2 if left < SOON else _NO_PROBLEM


def most_severe(
    sessions: Iterable[SessionSnapshot], now: datetime.datetime
) -> list[SessionSnapshot]:
    """Return up to :data:`MAX_SHOWN` sessions: those with problems first, then by name."""
    return heapq.nsmallest(
        MAX_SHOWN,
        sessions,
        key=lambda session: (severity(session, now), session.node, session.since),
    )


def session_table(
    sessions: Sequence[SessionSnapshot],
    rates_of: Callable[[bytes], Rates],
    peers: PeerTerms,
    now: datetime.datetime,
) -> Iterable[Content]:
    """Yield the table of ``sessions``, in their order; their charts share a scale."""
    highest = max((max(rates_of(_id(each)).both(), default=0.0) for each in sessions), default=0.0)
    scale = Scale(highest, "B/s")
    columns: list[Column[SessionSnapshot]] = [
        Column(peers.peer.capitalize(), lambda session: _name(session, peers), "name"),
        Column("State", lambda session: _state(session, peers)),
        Column(
            "Connected for",
            lambda session: formatting.moment(
                session.since, formatting.duration((now - session.since).total_seconds())
            ),
            order=lambda session: (now - session.since).total_seconds(),
        ),
        Column(
            "Round trip",
            lambda session: formatting.round_trip(session.round_trip),
            "number",
            lambda session: session.round_trip or 0.0,
        ),
        Column("Streams", lambda session: f"{session.streams:,}", "number", lambda s: s.streams),
        Column(
            f"Last {MINUTES} minutes, {scale}",
            lambda session: _traffic(session, rates_of(_id(session)), scale),
            "chart",
            lambda session: sum(rates_of(_id(session)).newest()),
        ),
        Column("Version", lambda session: session.version),
    ]
    if any(each.certificate_not_after for each in sessions):
        columns.append(
            Column(
                "Certificate",
                lambda session: _certificate(session, now),
                order=lambda session: _ends(session.certificate_not_after),
            )
        )
    return table(f"Sessions with {peers.peers}", columns, sessions)


def peer_link(name: str, peers: PeerTerms) -> Content:
    """Return the name of a peer, linked to its page if it has one."""
    if not peers.page:
        return name
    return element("a", name, href=f"/?{peers.page}={quote(name, errors='replace')}")


def _name(session: SessionSnapshot, peers: PeerTerms) -> Markup:
    address = element("small", session.address) if session.address != session.node else ""
    return joined(peer_link(session.node, peers), address)


def _id(session: SessionSnapshot) -> bytes:
    return bytes.fromhex(session.session_id)


def _ends(not_after: datetime.datetime | None) -> float:
    return float("inf") if not_after is None else not_after.timestamp()


def _certificate(session: SessionSnapshot, now: datetime.datetime) -> Content:
    not_after = session.certificate_not_after
    return "" if not_after is None else certificate_left(not_after, now)


def _state(session: SessionSnapshot, peers: PeerTerms) -> Markup:
    resumed = (
        element("small", formatting.counted(session.resumptions, "resumption"))
        if session.resumptions
        else ""
    )
    if session.waits_for is None:
        return joined(mark("ok", "connected"), resumed)
    left = f"{formatting.duration(session.waits_for)} left, then its streams end"
    return joined(mark("warn", peers.waiting), element("small", left), resumed)


def _traffic(session: SessionSnapshot, rates: Rates, scale: Scale) -> Markup:
    received, sent = rates.newest()
    size = formatting.size
    total = f"{size(session.bytes_received)} in, {size(session.bytes_sent)} out in all"
    return joined(
        sparkline(rates.both(), scale, "both directions,"),
        element(
            "small", f"in {formatting.rate(received)}, out {formatting.rate(sent)}", title=total
        ),
    )
