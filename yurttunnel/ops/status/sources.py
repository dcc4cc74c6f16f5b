"""Where the status page gets what it shows from."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.streams import StreamReport
from yurttunnel.steering.report import SteeringReport
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that cannot be reached: ``why`` is how its last session ended.

    ``last_seen`` is in seconds since the epoch, ``None`` for a node that has not been connected
    since this process started.
    """

    node: str
    last_seen: float | None
    why: str


@dataclass(frozen=True, slots=True)
class PeerWords:
    """What the page calls the other ends of the sessions: ``peer`` is one, ``peers`` are several.

    ``waiting`` says what a peer does that has lost its connection.
    """

    peer: str
    peers: str
    waiting: str


NODES = PeerWords("node", "nodes", "waiting for its return")
"""For a server."""

SERVERS = PeerWords("server", "servers", "about to return")
"""For an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """The functions are called each time that the page is shown.

    ``program`` is the name of the command. ``snapshots`` describes what ``sessions`` gives.
    ``certificates`` says when each certificate in use ends. ``steering`` is ``None`` where nothing
    is steered, ``lost_nodes`` at agents, and ``destinations``, which says what may be dialed, at
    servers. ``reactor_lag`` is the worst of the last minute, in seconds. ``other_sessions`` and
    ``other_streams`` are those of other processes, which ``snapshots`` describes, too.
    """

    program: str
    words: PeerWords
    readiness: Readiness
    counters: TunnelCounters
    sessions: Callable[[], Iterable[TunnelSession]]
    snapshots: Callable[[], Iterable[SessionSnapshot]]
    certificates: Callable[[], Mapping[str, datetime.datetime]]
    reactor_lag: Callable[[], float]
    steering: Callable[[], SteeringReport | None] = lambda: None
    lost_nodes: Callable[[], Sequence[LostNode]] | None = None
    destinations: Callable[[], Sequence[str]] | None = None
    other_sessions: Callable[[], Iterable[SessionSnapshot]] = tuple
    other_streams: Callable[[], Iterable[StreamReport]] = tuple
