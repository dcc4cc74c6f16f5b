"""Counters of a process's sessions, as plain attributes, and the metrics that read them.

Dial durations are one histogram for all nodes; the predecessors labeled it with ``agent``. A
histogram has nine series, which for 2,000 nodes would be 18,000, most of a scrape. Queries that sum
over ``agent`` keep working (a missing label is an empty one). A slow node shows in its round trip
time, and a single slow dial in the log. Both ends use the bounds of the agent's histogram: two
bounds, 10 and 30, replace the server's former last bound of 12.5 s.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from yurttunnel.metrics import Durations, Metric, counter, gauge
from yurttunnel.tunnel.shares import Holder, Kind
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget

DIAL_SECONDS_BOUNDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)
"""Upper bounds of the dial duration histogram: those of Konnectivity's agent, in seconds."""


MAX_ENTRIES = 1000
"""The maximum number of entries whose streams are counted separately."""


@dataclass(slots=True)
class Traffic:
    """A number of streams, and the bytes of their payload."""

    streams: int = 0
    received: int = 0
    sent: int = 0

    def add(self, received: int, sent: int) -> None:
        """Count one more stream."""
        self.streams += 1
        self.received += received
        self.sent += sent


@dataclass(slots=True)
class TunnelCounters:
    """Totals since the process started; they only grow.

    ``bytes_received`` and ``bytes_sent`` count stream payload from and to the peers of the
    sessions. ``dials`` counts the answers to OPEN by code, OK as :attr:`Code.DONE`. ``refused``
    counts dials rejected because a share was used up, by ``KIND.SHARE``
    (:mod:`yurttunnel.tunnel.shares`). ``traffic`` sums up the streams that have ended, by the entry
    of their holder.
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
    traffic: dict[tuple[Kind, int], Traffic] = field(default_factory=dict)

    def count_stream(self, holder: Holder, received: int, sent: int) -> None:
        """Count a stream of ``holder`` that has ended."""
        entry = holder[:2]
        traffic = self.traffic.get(entry)
        if traffic is None:
            if len(self.traffic) >= MAX_ENTRIES:
                return
            traffic = self.traffic[entry] = Traffic()
        traffic.add(received, sent)


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """One session at one moment, for ``/agents`` and per-node metrics.

    Times are UTC. ``round_trip`` is in seconds, ``None`` before the first measurement.
    ``connected`` is false while the session waits for its peer to reconnect; ``waits_for`` is the
    number of seconds left for that, ``None`` while connected. ``unacknowledged`` is the number of
    bytes retained for retransmission after a lost connection. ``streams_by_entry`` counts the
    streams that this end has opened, by the kind of entry.
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


class TunnelStats:
    """The source that a scrape reads; ``peer`` returns the name of a session's peer.

    ``newest`` has only one session for each peer, because the series of two would collide: a peer
    has two while a new session takes over from a draining one.
    """

    def __init__(
        self,
        counters: TunnelCounters,
        memory: MemoryBudget,
        sessions: Sequence[SessionSnapshot],
        peer: Callable[[SessionSnapshot], str],
    ) -> None:
        self.counters = counters
        self.memory = memory
        self.sessions = sessions
        self.newest: dict[str, SessionSnapshot] = {}
        for session in sessions:
            name = peer(session)
            other = self.newest.get(name)
            if other is None or other.since <= session.since:
                self.newest[name] = session


def tunnel_stats(
    counters: TunnelCounters,
    memory: MemoryBudget,
    sessions: Iterable[SessionSnapshot],
    peer: Callable[[SessionSnapshot], str],
) -> Generator[None, None, TunnelStats]:
    """Return :class:`TunnelStats`, yielding after each of ``sessions``, which may be many."""
    described = []
    for session in sessions:
        described.append(session)
        yield
    return TunnelStats(counters, memory, described, peer)


def tunnel_metrics(prefix: str, peer: str) -> tuple[Metric[TunnelStats], ...]:
    """Declare the metrics of both ends of a session; ``peer`` is the label for the peer's name."""
    return (
        counter(
            f"{prefix}bytes",
            "Payload of streams, received from and sent to the peers of this process's sessions,"
            " without frame headers, TLS and retransmissions after a lost connection.",
            lambda stats: (
                ("received", stats.counters.bytes_received),
                ("sent", stats.counters.bytes_sent),
            ),
            "direction",
        ),
        counter(
            f"{prefix}dial_results",
            "Results of opening streams: done is success. refused, unreachable, timeout and"
            " name_not_resolved concern the target; denied is the agent's --allow-destination;"
            " overloaded means that a limit was reached; session codes mean that the node was lost"
            " meanwhile.",
            lambda stats: _by_reason(stats.counters.dials),
            "reason",
        ),
        counter(
            f"{prefix}stream_ends",
            "Reasons for which streams ended: done is a normal end, cancelled a caller that"
            " disconnected, connection_lost a broken socket of a caller or target, session_lost and"
            " going_away an end by the tunnel. protocol, flow_control and internal are defects:"
            " please report them.",
            lambda stats: _by_reason(stats.counters.stream_ends),
            "reason",
        ),
        counter(
            f"{prefix}session_ends",
            "Reasons for which sessions ended: session_lost, the peer did not return within the"
            " resume window; replaced, it returned as a new process; revoked, its node was"
            " revoked. Connections that are rejected before a session begins are in the server's"
            " refused_agents. Many of flood, protocol or frame_too_large come from a peer that is"
            " not yurttunnel or is broken.",
            lambda stats: _by_reason(stats.counters.session_ends),
            "reason",
        ),
        gauge(
            f"{prefix}sessions",
            "Sessions: connected, and waiting for their peer to return within the resume window."
            " Waiting sessions that never become connected again are nodes that are being lost.",
            lambda stats: (
                ("connected", sum(each.connected for each in stats.sessions)),
                ("waiting", sum(not each.connected for each in stats.sessions)),
            ),
            "state",
        ),
        gauge(
            f"{prefix}open_streams",
            "Open streams of all sessions. A value that only grows means that a caller or target"
            " does not close connections.",
            lambda stats: sum(each.streams for each in stats.sessions),
        ),
        gauge(
            f"{prefix}unacknowledged_bytes",
            "Sent data that peers have not acknowledged, retained for retransmission after a lost"
            " connection, of all sessions. It follows the traffic, and is 0 from 0.2 s after it.",
            lambda stats: sum(each.unacknowledged for each in stats.sessions),
        ),
        counter(
            f"{prefix}sessions_started",
            "Sessions that were started. A steady rate without new nodes means that sessions end"
            " early: see the reasons in session_ends.",
            lambda stats: stats.counters.sessions_started,
        ),
        counter(
            f"{prefix}connections_lost",
            "Connections of sessions that were lost. Harmless as long as resumptions grows as fast;"
            " a high rate indicates a bad network, or a NAT that drops idle connections.",
            lambda stats: stats.counters.connections_lost,
        ),
        counter(
            f"{prefix}resumptions",
            "Sessions that were resumed over a new connection, with all their streams. The"
            " difference to connections_lost became session_lost, or is still waiting.",
            lambda stats: stats.counters.resumptions,
        ),
        gauge(
            f"{prefix}memory_budget_used_bytes",
            "Memory promised to streams as windows, or holding unacknowledged data. Near the limit"
            " windows stop growing, and single streams become slower on long links.",
            lambda stats: stats.memory.used,
        ),
        gauge(
            f"{prefix}memory_budget_limit_bytes",
            "Upper limit of memory_budget_used_bytes; at the limit new streams are rejected.",
            lambda stats: stats.memory.limit,
        ),
        gauge(
            f"{prefix}session_round_trip_seconds",
            "Round-trip time of PING, the shortest of the last eight on the same connection; absent"
            " before the first reply. An agent without streams measures it once per connection."
            " Every new stream and every keystroke waits for one round trip.",
            lambda stats: (
                (name, each.round_trip)
                for name, each in stats.newest.items()
                if each.round_trip is not None
            ),
            peer,
        ),
        gauge(
            f"{prefix}session_open_streams",
            "Open streams of this session.",
            lambda stats: ((name, each.streams) for name, each in stats.newest.items()),
            peer,
        ),
        counter(
            f"{prefix}session_bytes",
            "Payload of the streams of this session; starts at 0 with each new session.",
            lambda stats: (
                sample
                for name, each in stats.newest.items()
                for sample in (
                    ((name, "received"), each.bytes_received),
                    ((name, "sent"), each.bytes_sent),
                )
            ),
            peer,
            "direction",
        ),
    )


def _by_reason(counts: Counter[Code]) -> Iterable[tuple[str, int]]:
    """Return a count for every code, 0 included, so that ``rate`` sees the first event."""
    return ((code.name.lower(), counts[code]) for code in Code)
