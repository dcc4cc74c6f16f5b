"""The streams of a process, one on each line of the status page."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from twisted.internet.address import UNIXAddress
from twisted.internet.interfaces import IProtocol

from yurttunnel.http.authority import display_host, join_authority
from yurttunnel.ops.slices import gather
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.formatting import PeerTerms
from yurttunnel.ops.status.markup import Column, Content, element, joined, table
from yurttunnel.ops.status.sessions import peer_link
from yurttunnel.tunnel.relay import StreamSide
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.stream import TunnelStream

MAX_EXAMINED = 10_000
"""The maximum number of streams to examine for those to show."""


class StreamReport(NamedTuple):
    """One stream: ``age`` is in seconds, bytes are payload; ``state`` is the protocol's term.

    ``peer`` is the other end of the session: the node, or, at an agent, the server. ``kind`` is the
    kind of entry point, and ``caller_address`` the caller, empty if it is on the other end. An
    ``idle`` stream is kept for the next request.
    """

    request_id: str
    peer: str
    destination: str
    state: str
    age: float
    bytes_received: int
    bytes_sent: int
    kind: str = ""
    caller_address: str = ""
    idle: bool = False


class Streams(NamedTuple):
    """Some of the streams that are in use, or idle, oldest first, and their number.

    There may be more if the process has more than :data:`MAX_EXAMINED`.
    """

    shown: list[StreamReport]
    total: int


def oldest_streams(
    sessions: Iterable[TunnelSession],
    most: int,
    desired: Callable[[StreamReport], bool],
    pooled: Iterable[tuple[TunnelStream, str]] = (),
) -> Generator[str, None, tuple[Streams, Streams]]:
    """Return up to ``most`` of the streams that are ``desired``: those in use, and the idle ones.

    ``pooled`` are the streams that callers use in turn, each with its current caller, empty if it
    is idle.
    """
    callers = dict((yield from gather(pooled)))
    count: Counter[bool] = Counter()

    def wanted(report: StreamReport) -> bool:
        count[report.idle] += 1
        return desired(report)

    reports = yield from gather(islice(_reports(sessions, callers), MAX_EXAMINED), wanted)
    used, unused = (
        Streams(
            heapq.nlargest(most, (r for r in reports if r.idle is idle), key=lambda each: each.age),
            count[idle],
        )
        for idle in (False, True)
    )
    return used, unused


def _reports(
    sessions: Iterable[TunnelSession], callers: Mapping[TunnelStream, str]
) -> Iterator[StreamReport]:
    for session in sessions:
        now = session.clock.seconds()
        for stream in list(session.wire.streams.values()):
            request, events = stream.request, stream.events
            kind = caller_address = ""
            idle = False
            if isinstance(events, TunnelStream) and events.holder is not None:
                kind = events.holder.kind.value
                caller = callers.get(events)
                idle = caller == ""
                caller_address = _caller_address(events.user) if caller is None else caller
            yield StreamReport(
                request_id=request.request_id,
                peer=session.peer_name,
                destination=join_authority(request.host, request.port),
                state=stream.state.value,
                age=max(0.0, now - stream.since),
                bytes_received=stream.window.received,
                bytes_sent=stream.sent,
                kind=kind,
                caller_address=caller_address,
                idle=idle,
            )


def _caller_address(user: IProtocol | None) -> str:
    """Return the address of the caller whose connection is joined to ``user``, of a stream."""
    if not isinstance(user, StreamSide):
        return ""
    peer: Any = user.local.transport.getPeer()
    if isinstance(peer, UNIXAddress):
        return "a Unix socket"
    host = getattr(peer, "host", None)
    return "" if host is None else join_authority(display_host(host), peer.port)


def stream_table(streams: Sequence[StreamReport], peers: PeerTerms) -> Content:
    """Return the table of streams; the caller is known where the stream was opened."""
    columns: list[Column[StreamReport]] = [
        Column("Request", lambda stream: stream.request_id or "-", "name code"),
        Column(peers.peer.capitalize(), lambda stream: peer_link(stream.peer, peers)),
        Column("Destination", lambda stream: stream.destination),
        Column("Caller", _who, "who"),
        Column("State", lambda stream: stream.state),
        Column("Age", lambda one: formatting.duration(one.age), "number", lambda one: one.age),
        Column(
            f"From {peers.peer}",
            lambda stream: formatting.size(stream.bytes_received),
            "number",
            lambda stream: stream.bytes_received,
        ),
        Column(
            f"To {peers.peer}",
            lambda stream: formatting.size(stream.bytes_sent),
            "number",
            lambda stream: stream.bytes_sent,
        ),
    ]
    if not any(each.kind for each in streams):
        del columns[3]
    return table("Streams that are open", columns, streams)


def _who(stream: StreamReport) -> Content:
    return joined(stream.caller_address, element("small", stream.kind))
