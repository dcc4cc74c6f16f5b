"""What a process counts about its sessions: plain attributes, read when somebody looks.

The data path adds to integers; nothing here knows of metric libraries. ``yurttunnel.ops``
turns these figures into Prometheus samples at scrape time.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from yurttunnel.wire.codes import Code

DIAL_SECONDS_BOUNDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)
"""Upper bounds of the dial duration histogram: those of Konnectivity's agent, in seconds."""


class Durations:
    """A histogram of how long something took; ``bounds`` are upper bounds in seconds."""

    __slots__ = ("bounds", "buckets", "total_seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        # The last one has what is above all bounds.
        self.buckets = [0] * (len(bounds) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.total_seconds += seconds


@dataclass(slots=True)
class TunnelCounters:
    """Totals since the process started; they only grow.

    ``bytes_received`` and ``bytes_sent`` are stream payload from and to the peers of the
    sessions. ``dials`` has one entry for each answer to an OPEN, :attr:`Code.DONE` for OK.
    ``refused`` are dials for whom a share was used up, by ``KIND.SHARE``
    (:mod:`yurttunnel.tunnel.shares`).
    """

    bytes_received: int = 0
    bytes_sent: int = 0
    sessions_started: int = 0
    resumptions: int = 0
    connections_lost: int = 0
    dials: Counter[Code] = field(default_factory=Counter)
    stream_ends: Counter[Code] = field(default_factory=Counter)
    session_ends: Counter[Code] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    dial_durations: Durations = field(default_factory=lambda: Durations(DIAL_SECONDS_BOUNDS))


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """One session at one moment, for ``/agents`` and per-node metrics.

    Times are UTC; ``round_trip`` is in seconds, ``None`` before the first measurement;
    ``connected`` is false while the session waits for its peer to come back. ``unacknowledged``
    are the bytes kept, to be sent again after a lost connection. ``waits_for`` is for how many
    seconds the session still waits, ``None`` while it is connected. ``streams_by_entry`` are those
    that this end has opened, by the kind of entry.
    """

    node: str
    session_id: str
    since: datetime.datetime
    connected: bool
    waits_for: float | None
    round_trip: float | None
    streams: int
    bytes_received: int
    bytes_sent: int
    unacknowledged: int
    resumptions: int
    version: str
    address: str
    certificate_not_after: datetime.datetime | None
    streams_by_entry: Mapping[str, int] = field(default_factory=dict)
