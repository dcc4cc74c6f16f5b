"""The section of the status page about listeners: addresses, targets, and traffic."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from twisted.internet.address import UNIXAddress
from twisted.internet.interfaces import IAddress

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.slices import visit
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import Column, Content, table
from yurttunnel.ops.status.sections import NO_MATCH, PageContext, Section, listing
from yurttunnel.ops.status.streams import MAX_EXAMINED
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.shares import Holder, Kind
from yurttunnel.tunnel.statistics import Traffic, TunnelCounters
from yurttunnel.tunnel.stream import TunnelStream
from yurttunnel.wire.stream import Stream

MAX_SHOWN = 100
"""The maximum number shown."""

_Key = tuple[Kind, int]
_NOTHING = Traffic()


class ListenerInfo(NamedTuple):
    """A listener: its ``flag``, its ``address``, and the ``target`` of its connections.

    ``kind`` is ``None`` if its streams are not counted separately.
    """

    flag: str
    address: str
    target: str
    kind: Kind | None = None

    @property
    def key(self) -> _Key | None:
        """The key under which its streams are counted (:class:`Holder`)."""
        return None if self.kind is None else Holder.of(self.kind, self.flag, "")[:2]


class _Row(NamedTuple):
    listener: ListenerInfo
    open: int
    traffic: Traffic


class ListenerSection:
    """Describes the current listeners; ``counters`` have the traffic of their streams."""

    def __init__(
        self,
        counters: TunnelCounters,
        sessions: Callable[[], Iterable[TunnelSession]],
        listeners: Callable[[], Sequence[ListenerInfo]],
    ) -> None:
        self._counters = counters
        self._sessions = sessions
        self._listeners = listeners

    def section(self, moment: PageContext) -> Generator[str, None, Section]:
        """Return the section of the status page."""
        listeners = self._listeners()
        streams = (each for s in self._sessions() for each in list(s.wire.streams.values()))
        live: dict[_Key, Traffic] = {}
        yield from visit(islice(streams, MAX_EXAMINED), lambda stream: _add(stream, live))
        rows = [
            self._row(each, live)
            for each in listeners
            if moment.matches(each.flag, each.address, each.target)
        ]
        content = listing(
            "Listeners and forwards",
            rows[:MAX_SHOWN],
            len(rows),
            "in the order of their flags",
            lambda shown: table("Listeners and their targets", _COLUMNS, shown),
            NO_MATCH if listeners else "Nothing listens yet.",
        )
        return Section("entries", content, "sessions")

    def _row(self, listener: ListenerInfo, live: dict[_Key, Traffic]) -> _Row:
        key = listener.key
        if key is None:
            return _Row(listener, 0, Traffic())
        now, past = live.get(key, _NOTHING), self._counters.traffic.get(key, _NOTHING)
        traffic = Traffic(
            now.streams + past.streams, now.received + past.received, now.sent + past.sent
        )
        return _Row(listener, now.streams, traffic)


def _add(stream: Stream, live: dict[_Key, Traffic]) -> None:
    """Add an open stream."""
    events = stream.events
    holder = events.holder if isinstance(events, TunnelStream) else None
    if holder is not None:
        live.setdefault(holder[:2], Traffic()).add(stream.window.received, stream.sent)


def format_address(address: IAddress) -> str:
    """Return a listening address in readable form."""
    if isinstance(address, UNIXAddress):
        return f"unix:{address.name.decode() if isinstance(address.name, bytes) else address.name}"
    host = getattr(address, "host", None)
    return str(address) if host is None else join_authority(host, getattr(address, "port", 0))


def _figure(row: _Row, text: str) -> Content:
    return "" if row.listener.kind is None else text


_COLUMNS: list[Column[_Row]] = [
    # The listening address and the target have their own columns.
    Column("Flag", lambda row: row.listener.flag.partition(" ")[0], "name code"),
    Column("Listens on", lambda row: row.listener.address),
    Column("Leads to", lambda row: row.listener.target),
    Column("Open", lambda row: _figure(row, f"{row.open:,}"), "number", lambda row: row.open),
    Column(
        "Streams so far",
        lambda row: _figure(row, f"{row.traffic.streams:,}"),
        "number",
        lambda row: row.traffic.streams,
    ),
    Column(
        "To callers",
        lambda row: _figure(row, formatting.size(row.traffic.received)),
        "number",
        lambda row: row.traffic.received,
    ),
    Column(
        "From callers",
        lambda row: _figure(row, formatting.size(row.traffic.sent)),
        "number",
        lambda row: row.traffic.sent,
    ),
]
