"""The figures of a process as Prometheus metrics, computed when somebody scrapes.

Nothing is counted here: these functions read :class:`TunnelCounters` and session snapshots, so
the data path pays nothing for metrics, and a node that leaves is gone from the next scrape.

Names that begin with ``konnectivity_network_proxy_`` are those of Konnectivity and of yurttunnel
1.2, so that their dashboards go on working. The rest begins
with ``yurttunnel_server_`` or ``yurttunnel_agent_``.

Dial durations are one histogram for all nodes, where the predecessors labeled it with ``agent``.
A histogram is nine series, and 2,000 nodes would make them 18,000, most of a scrape. Queries
that sum over ``agent`` keep working (a missing label is an empty one), and which node is slow is
answered by its round trip time and, for a single dial, by the log. The bounds are those of the
agent's histogram at both ends: the server's former last bound of 12.5 s is now two, 10 and 30.
"""

from __future__ import annotations

import datetime
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from yurttunnel import __version__
from yurttunnel.ops.families import (
    CounterMetricFamily,
    GaugeMetricFamily,
    MetricFamily,
    MetricRegistry,
)
from yurttunnel.ops.histograms import duration_histogram
from yurttunnel.ops.process_stats import process_figures
from yurttunnel.tunnel.shares import Kind, Share
from yurttunnel.tunnel.statistics import (
    SessionSnapshot,
    TunnelCounters,
)
from yurttunnel.wire.codes import Code

_KONNECTIVITY = "konnectivity_network_proxy_"


class Memory(Protocol):
    """A budget as the metrics show it, in bytes."""

    @property
    def used(self) -> int:
        """What has been promised or is kept."""

    @property
    def limit(self) -> int:
        """What may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Where the figures of a process come from; each function is called once a scrape.

    ``certificates`` gives the end of validity of each certificate in use by a short fixed name
    (``server``, ``agent``, ``ca``, ``kubelet-client``), with a timezone. ``reactor_lag`` is in
    seconds, usually :meth:`yurttunnel.ops.lag.ReactorLag.worst`.
    """

    counters: TunnelCounters
    sessions: Callable[[], Iterable[SessionSnapshot]]
    certificates: Callable[[], Mapping[str, datetime.datetime]]
    memory: Memory
    reactor_lag: Callable[[], float]


def server_registry(stats: Stats) -> MetricRegistry:
    """Build the registry of a server process; its parts add theirs."""
    registry = MetricRegistry()
    registry.add(lambda: _server_families(stats))
    registry.add(process_figures())
    return registry


def agent_registry(stats: Stats, failed_attempts: Callable[[], int]) -> MetricRegistry:
    """Build the registry of an agent process; its parts add theirs.

    ``failed_attempts`` gives the number of attempts to connect to a server, since the process
    started, that did not get as far as the server's HELLO.
    """
    registry = MetricRegistry()
    registry.add(lambda: _agent_families(stats, failed_attempts()))
    registry.add(process_figures())
    return registry


def _server_families(stats: Stats) -> Iterator[MetricFamily]:
    """Read all figures once and give their families."""
    sessions = list(stats.sessions())
    newest = _newest(sessions, lambda session: session.node)
    yield from _registered_agents(newest)
    yield duration_histogram(
        f"{_KONNECTIVITY}server_dial_duration_seconds",
        "How long agents took to reach a target, seen from the server; successful dials "
        "only. Compare with the round trip times: a dial is one round trip more than what "
        "the node itself needs.",
        stats.counters.dial_durations,
    )
    yield from _process_wide("yurttunnel_server_", stats, sessions)
    yield _refused_streams(stats.counters.refused)
    yield from _per_peer("yurttunnel_server_", "node", newest)


def _refused_streams(refused: Counter[str]) -> MetricFamily:
    family = CounterMetricFamily(
        "yurttunnel_server_refused_streams",
        "Dials that were refused because a share of the streams was used up, by the entry "
        "(forward, connect, passthrough, or kubelets for requests to them) and whose share it was: "
        "caller, one address or user has too many by that entry; entry, its callers together; "
        "all, there is room for nobody. docs/limits.md has the shares; /agents says which entries "
        "have how many streams to a node, and what callers are told names the node.",
        labels=["entry", "share"],
    )
    for kind in Kind:
        for share in Share:
            family.add_metric([kind, share], refused[f"{kind}.{share}"])
    return family


def _agent_families(stats: Stats, failed_attempts: int) -> Iterator[MetricFamily]:
    """Read all figures once and give their families."""
    sessions = list(stats.sessions())
    counters = stats.counters
    yield duration_histogram(
        f"{_KONNECTIVITY}agent_dial_duration_seconds",
        "How long targets took to accept a connection of this agent; successful dials "
        "only. High values mean slow or distant targets, not a slow tunnel.",
        counters.dial_durations,
    )
    yield _connection_failures(counters.connections_lost, failed_attempts)
    yield from _process_wide("yurttunnel_agent_", stats, sessions)
    newest = _newest(sessions, lambda session: session.address)
    yield from _per_peer("yurttunnel_agent_", "server", newest)


def _newest(
    sessions: Iterable[SessionSnapshot], key: Callable[[SessionSnapshot], str]
) -> dict[str, SessionSnapshot]:
    """Keep one session for each peer, since the series of two would collide.

    While a new session takes over from a draining one a peer has both.
    """
    newest: dict[str, SessionSnapshot] = {}
    for session in sessions:
        name = key(session)
        other = newest.get(name)
        if other is None or other.since <= session.since:
            newest[name] = session
    return newest


def _registered_agents(newest: Mapping[str, SessionSnapshot]) -> Iterator[MetricFamily]:
    registered = GaugeMetricFamily(
        f"{_KONNECTIVITY}server_registered_agents",
        "1 for a node whose agent is connected, 0 for one whose agent is expected back within "
        "the resume window. A node that is absent has no session: it cannot be reached.",
        labels=["agentID"],
    )
    connected = 0
    for node, session in newest.items():
        registered.add_metric([node], int(session.connected))
        connected += session.connected
    yield registered
    yield GaugeMetricFamily(
        f"{_KONNECTIVITY}server_total_registered_agents",
        "How many nodes have a connected agent. A sudden fall across many nodes points to the "
        "network before the server; a fall to 0 to the server itself or its certificate.",
        connected,
    )


def _connection_failures(lost: int, failed_attempts: int) -> MetricFamily:
    # Not a CounterMetricFamily: that would append _total to the agreed name.
    family = MetricFamily(
        f"{_KONNECTIVITY}agent_server_connection_failure_count",
        "counter",
        "Connections between this agent and its servers that failed: direction to_server counts "
        "attempts that ended before the server's HELLO (look at address, firewall and "
        "certificates), from_server counts established connections that broke (look at the "
        "network between).",
        labels=["direction"],
    )
    family.add_metric(["from_server"], lost)
    family.add_metric(["to_server"], failed_attempts)
    return family


def _process_wide(
    prefix: str, stats: Stats, sessions: list[SessionSnapshot]
) -> Iterator[MetricFamily]:
    yield from _traffic(prefix, stats.counters)
    yield from _endings(prefix, stats.counters)
    yield from _sessions(prefix, stats.counters, sessions)
    yield from _resources(prefix, stats)


def _traffic(prefix: str, counters: TunnelCounters) -> Iterator[MetricFamily]:
    transferred = CounterMetricFamily(
        f"{prefix}bytes",
        "Payload of streams, received from and sent to the other ends of this process's "
        "sessions. Frame headers, TLS and what was sent again after a lost connection are not "
        "included.",
        labels=["direction"],
    )
    transferred.add_metric(["received"], counters.bytes_received)
    transferred.add_metric(["sent"], counters.bytes_sent)
    yield transferred


def _endings(prefix: str, counters: TunnelCounters) -> Iterator[MetricFamily]:
    yield _by_reason(
        f"{prefix}dial_results",
        "Answers to requests for a stream: done is success. refused, unreachable, timeout and "
        "name_not_resolved lie with the target; denied is the agent's --allow-destination; "
        "overloaded means that a limit was reached; session codes mean that the node was lost "
        "meanwhile.",
        counters.dials,
    )
    yield _by_reason(
        f"{prefix}stream_ends",
        "How streams ended: done is a normal end, cancelled a caller who went away, "
        "connection_lost a caller's or target's socket that broke, session_lost and "
        "going_away the tunnel's own doing. protocol, flow_control and internal are defects: "
        "please report them.",
        counters.stream_ends,
    )
    yield _by_reason(
        f"{prefix}session_ends",
        "Why sessions ended: session_lost means that the peer did not come back within the "
        "resume window, replaced that it came back as a new process, revoked that its node was "
        "cut off. Who is refused before there is a session is in the server's refused_agents. Many "
        "of flood, protocol or frame_too_large come from a peer that is not yurttunnel or is "
        "broken.",
        counters.session_ends,
    )


def _by_reason(name: str, help_text: str, counts: Counter[Code]) -> MetricFamily:
    """Count by code; every code is there from the start, so that ``rate`` sees the first one."""
    family = CounterMetricFamily(name, help_text, labels=["reason"])
    for code in Code:
        family.add_metric([code.name.lower()], counts[code])
    return family


def _sessions(
    prefix: str, counters: TunnelCounters, sessions: list[SessionSnapshot]
) -> Iterator[MetricFamily]:
    connected = sum(session.connected for session in sessions)
    by_state = GaugeMetricFamily(
        f"{prefix}sessions",
        "Sessions now: connected ones, and those that wait for their peer to come back within "
        "the resume window. Waiting ones that never become connected again are nodes that are "
        "being lost.",
        labels=["state"],
    )
    by_state.add_metric(["connected"], connected)
    by_state.add_metric(["waiting"], len(sessions) - connected)
    yield by_state
    yield GaugeMetricFamily(
        f"{prefix}open_streams",
        "Streams that are open now, over all sessions. A value that only grows means that "
        "somebody does not close connections.",
        sum(session.streams for session in sessions),
    )
    yield GaugeMetricFamily(
        f"{prefix}unacknowledged_bytes",
        "What is kept to be sent again if a connection breaks, over all sessions. It follows the "
        "traffic, and is nothing 0.2 s after it.",
        sum(session.unacknowledged for session in sessions),
    )
    yield CounterMetricFamily(
        f"{prefix}sessions_started",
        "Sessions that began. A steady rate without new nodes means that sessions do not live: "
        "look at the reasons in session_ends.",
        counters.sessions_started,
    )
    yield CounterMetricFamily(
        f"{prefix}connections_lost",
        "Connections that broke under a session. Harmless as long as resumptions keeps up with "
        "it; a high rate is a bad network or a NAT that forgets.",
        counters.connections_lost,
    )
    yield CounterMetricFamily(
        f"{prefix}resumptions",
        "Sessions that went on over a new connection, with all their streams. What "
        "connections_lost has more than this became session_lost, or is still waiting.",
        counters.resumptions,
    )


def _resources(prefix: str, stats: Stats) -> Iterator[MetricFamily]:
    memory = stats.memory
    yield GaugeMetricFamily(
        f"{prefix}memory_budget_used_bytes",
        "Promised to streams as windows, and kept until peers acknowledge it. Near the limit "
        "windows stop growing, and single streams become slower on long links.",
        memory.used,
    )
    yield GaugeMetricFamily(
        f"{prefix}memory_budget_limit_bytes",
        "What may be promised and kept; at the limit new streams are refused.",
        memory.limit,
    )
    yield GaugeMetricFamily(
        f"{prefix}reactor_lag_seconds",
        "By how much the latest timer of the last minute was late. Above 0.1 every stream "
        "feels it: the process needs more CPU, or something blocks it.",
        stats.reactor_lag(),
    )
    yield _certificate_expiry(prefix, stats.certificates())
    build = GaugeMetricFamily(
        f"{prefix}build_info",
        "Always 1; the labels say which versions run.",
        labels=["version", "python"],
    )
    build.add_metric([__version__, platform.python_version()], 1)
    yield build


def _certificate_expiry(prefix: str, certificates: Mapping[str, datetime.datetime]) -> MetricFamily:
    family = GaugeMetricFamily(
        f"{prefix}certificate_expiry_timestamp_seconds",
        "When each certificate in use ends, in seconds since 1970. Renewal happens long before; "
        "alert when less than a week is left.",
        labels=["certificate"],
    )
    for name, not_after in certificates.items():
        family.add_metric([name], not_after.timestamp())
    return family


def _per_peer(
    prefix: str, label: str, newest: Mapping[str, SessionSnapshot]
) -> Iterator[MetricFamily]:
    round_trip = GaugeMetricFamily(
        f"{prefix}session_round_trip_seconds",
        "Round trip time by PING, absent before the first answer. Every new stream and every "
        "keystroke waits for one of these.",
        labels=[label],
    )
    streams = GaugeMetricFamily(
        f"{prefix}session_open_streams", "Streams that are open in this session.", labels=[label]
    )
    transferred = CounterMetricFamily(
        f"{prefix}session_bytes",
        "Payload of the session's streams since it began; begins at 0 with every new session.",
        labels=[label, "direction"],
    )
    for name, session in newest.items():
        if session.round_trip is not None:
            round_trip.add_metric([name], session.round_trip)
        streams.add_metric([name], session.streams)
        transferred.add_metric([name, "received"], session.bytes_received)
        transferred.add_metric([name, "sent"], session.bytes_sent)
    yield round_trip
    yield streams
    yield transferred
