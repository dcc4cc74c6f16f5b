"""The streams of a process, each as a line of the status page."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.status import words
from yurttunnel.ops.status.markup import Column, Markup, table
from yurttunnel.ops.status.words import PeerWords
from yurttunnel.tunnel.session import TunnelSession

MOST_EXAMINED = 10_000
"""Streams that are looked at to find those to show: some milliseconds."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One stream: ``age`` is in seconds, bytes are payload; ``state`` is the wire's word.

    ``peer`` is the other end of the session: the node, or, at an agent, the server.
    """

    request_id: str
    peer: str
    destination: str
    state: str
    age: float
    bytes_received: int
    bytes_sent: int


def oldest_streams(
    sessions: Iterable[TunnelSession],
    most: int,
    desired: Callable[[StreamReport], bool],
) -> list[StreamReport]:
    """Return up to ``most`` of the streams that are ``desired``, the oldest first."""
    reports = filter(desired, islice(_reports(sessions), MOST_EXAMINED))
    return heapq.nlargest(most, reports, key=lambda report: report.age)


def _reports(sessions: Iterable[TunnelSession]) -> Iterator[StreamReport]:
    for session in sessions:
        now = session.clock.seconds()
        for stream in list(session.wire.streams.values()):
            request = stream.request
            yield StreamReport(
                request_id=request.request_id,
                peer=session.peer_name,
                destination=join_authority(request.host, request.port),
                state=stream.state.value,
                age=max(0.0, now - stream.since),
                bytes_received=stream.window.received,
                bytes_sent=stream.sent,
            )


def stream_table(streams: Iterable[StreamReport], peers: PeerWords) -> Markup:
    """Make the table of streams."""
    columns: list[Column[StreamReport]] = [
        Column("Request", lambda stream: stream.request_id or "-", "name code"),
        Column(peers.peer.capitalize(), lambda stream: stream.peer),
        Column("Destination", lambda stream: stream.destination),
        Column("State", lambda stream: stream.state),
        Column("Age", lambda stream: words.duration(stream.age), "number"),
        Column(f"From {peers.peer}", lambda stream: words.size(stream.bytes_received), "number"),
        Column(f"To {peers.peer}", lambda stream: words.size(stream.bytes_sent), "number"),
    ]
    return table("Streams that are open", columns, streams)
