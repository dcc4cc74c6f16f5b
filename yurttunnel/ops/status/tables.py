"""The smaller tables of the status page."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from yurttunnel.ops.status import words
from yurttunnel.ops.status.events import RecentEvent
from yurttunnel.ops.status.markup import Column, Content, Markup, element, joined, mark, table
from yurttunnel.ops.status.sessions import certificate_left
from yurttunnel.ops.status.sources import LostNode, PeerWords
from yurttunnel.ops.status.streams import StreamReport


def lost_table(lost: Sequence[LostNode], now: datetime.datetime) -> Markup:
    """Make the table of nodes that cannot be reached."""
    columns = [Column("Node", "name"), Column("Last seen"), Column("Why", "text")]
    return table("Nodes that are not connected", columns, (_lost_row(each, now) for each in lost))


def _lost_row(lost: LostNode, now: datetime.datetime) -> list[Content]:
    if lost.last_seen is None:
        return [lost.node, "not since this server started", lost.why]
    return [lost.node, words.ago(words.at(lost.last_seen), now), lost.why]


def stream_table(streams: Iterable[StreamReport], peers: PeerWords) -> Markup:
    """Make the table of streams."""
    columns = [
        Column("Request", "name code"),
        Column(peers.peer.capitalize()),
        Column("Destination"),
        Column("State"),
        Column("Age", "number"),
        Column(f"From {peers.peer}", "number"),
        Column(f"To {peers.peer}", "number"),
    ]
    rows = (
        [
            each.request_id or "-",
            each.peer,
            each.destination,
            each.state,
            words.duration(each.age),
            words.size(each.bytes_received),
            words.size(each.bytes_sent),
        ]
        for each in streams
    )
    return table("Streams that are open", columns, rows)


def certificate_table(
    certificates: Mapping[str, datetime.datetime], now: datetime.datetime
) -> Markup:
    """Make the table of the process's own certificates, the one that ends first at the top."""
    ordered = sorted(certificates.items(), key=lambda item: item[1])
    columns = [Column("Certificate", "name"), Column("Good for"), Column("Until")]
    return table(
        "Certificates of this process",
        columns,
        (
            [name, certificate_left(end, now), words.moment(end, f"{end:%-d %B %Y, %H:%M} UTC")]
            for name, end in ordered
        ),
    )


def event_table(events: Iterable[RecentEvent], now: datetime.datetime) -> Markup:
    """Make the table of warnings and errors, in their order."""
    columns = [
        Column("Message", "name text"),
        Column("Level"),
        Column("Last"),
        Column("Times", "number"),
    ]
    rows = (
        [
            joined(each.text, element("small", each.source)),
            mark("warn" if each.level == "warning" else "bad", each.level),
            words.ago(words.at(each.last), now),
            f"{each.count:,}",
        ]
        for each in events
    )
    return table("The last warnings and errors of the log", columns, rows)


def destination_list(destinations: Iterable[str]) -> Markup:
    """Make the list of what may be dialed."""
    return element("ul", [element("li", each) for each in destinations])
