"""The parts of a server process in both modes that need no trust: metrics, pages, registry."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from yurttunnel.metrics import Metric, MetricRegistry, counter, gauge, histogram
from yurttunnel.ops import tunnel_flags
from yurttunnel.ops.configuration.reloading import ChangeRejected, ConfigurationReloader
from yurttunnel.ops.failures import Failures
from yurttunnel.ops.meta import MetaPort
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.formatting import PeerTerms
from yurttunnel.ops.status.peers import Peers
from yurttunnel.ops.status.sections import Section
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.ops.threads import run_in_new_thread
from yurttunnel.server import flag_table
from yurttunnel.server.agents import RefuseStreams
from yurttunnel.server.audit import Audit
from yurttunnel.server.audit_log import METRICS as AUDIT_METRICS
from yurttunnel.server.audit_log import AuditLog
from yurttunnel.server.audit_sinks import AuditSettings, open_sink
from yurttunnel.server.expected_nodes import ExpectedNodes
from yurttunnel.server.frontends.forwards import Forwards
from yurttunnel.server.frontends.kubelet.metrics import InterceptionCounters
from yurttunnel.server.listener_section import ListenerInfo, ListenerSection
from yurttunnel.server.lost_nodes import LostNodes, lost_section
from yurttunnel.server.node_history import NodeHistory
from yurttunnel.server.node_pages import NodePages
from yurttunnel.server.node_view import NodeView
from yurttunnel.server.options import Settings
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.steering.page import steering_page, steering_section
from yurttunnel.steering.report import SteeringReport
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.tunnel.shares import Kind, Share
from yurttunnel.tunnel.statistics import (
    SessionSnapshot,
    TunnelCounters,
    TunnelStats,
    tunnel_metrics,
    tunnel_stats,
)
from yurttunnel.tunnel.stream import TunnelStream
from yurttunnel.wire.credit import MemoryBudget

LIVE_FLAGS = (
    flag_table.FORWARD,
    flag_table.ALLOW_CONNECT,
    tunnel_flags.DRAIN_TIMEOUT,
    flag_table.RESPONSE_TIMEOUT,
    flag_table.RESUME_WINDOW,
    flag_table.RETURN_GRACE,
)
"""The flags that can change while the server runs."""

ApplySettings = Callable[[Settings], Awaitable[None] | None]


class LiveSettings:
    """The current settings, ``current``; later ones can change :data:`LIVE_FLAGS` only."""

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._parts: list[ApplySettings] = []

    def follow(self, apply: ApplySettings) -> None:
        """Have ``apply(settings)`` called for each change.

        Callbacks that may reject a change, by :class:`ChangeRejected`, must be registered first.
        """
        self._parts.append(apply)

    async def apply(self, settings: Settings) -> None:
        """Change to ``settings``, or raise :class:`ChangeRejected` and change nothing.

        Permissions cannot all be removed this way: the file may have been truncated.
        """
        if self.current.connect_permissions and not settings.connect_permissions:
            raise ChangeRejected(
                "--allow-connect: without one everybody who can connect can reach every node,"
                " which needs a restart: keep at least one"
            )
        for apply in self._parts:
            applied = apply(settings)
            if applied is not None:
                await applied
        self.current = settings


PREFIX = "yurttunnel_server_"
"""The prefix of the names of metrics."""

MEMORY_BUDGET = 512 * 1024 * 1024
"""The maximum number of bytes that may be promised to the streams of all sessions."""

NODES = PeerTerms("node", "nodes", "waiting for its return", "node")

_FOR_CALLERS = frozenset({Kind.CONNECT, Kind.FORWARD, Kind.PASSTHROUGH})
"""The kinds of streams each of which is one request of a caller."""


METRICS: tuple[Metric[TunnelStats], ...] = (
    gauge(
        "konnectivity_network_proxy_server_registered_agents",
        "1 for a node whose agent is connected, 0 for a node whose agent may return within the"
        " resume window. A node without a value has no session and is unreachable.",
        lambda stats: ((node, int(each.connected)) for node, each in stats.newest.items()),
        "agentID",
    ),
    gauge(
        "konnectivity_network_proxy_server_total_registered_agents",
        "Number of nodes with a connected agent. A sudden drop across many nodes points to the"
        " network in front of the server; a drop to 0 to the server itself or its certificate.",
        lambda stats: sum(each.connected for each in stats.newest.values()),
    ),
    histogram(
        "konnectivity_network_proxy_server_dial_duration_seconds",
        "Duration of successful dials through agents, as seen by the server. Compare it with the"
        " round-trip times: a dial takes one round trip more than the node's own dial.",
        lambda stats: stats.counters.dial_durations,
    ),
    counter(
        "yurttunnel_server_refused_streams",
        "Dials rejected because a share of the streams was exhausted, by entry (forward, connect,"
        " passthrough, or kubelets for requests to them) and holder of the share: caller, one"
        " address or user has too many through that entry; entry, all its callers together; all,"
        " there is no room at all. docs/limits.md has the shares; /agents has the streams of each"
        " entry to a node, and the error that callers get names the node.",
        lambda stats: (
            ((kind, share), stats.counters.refused[f"{kind}.{share}"])
            for kind in Kind
            for share in Share
        ),
        "entry",
        "share",
    ),
)


def server_registry(
    counters: TunnelCounters,
    memory: MemoryBudget,
    sessions: Callable[[], Iterable[SessionSnapshot]],
) -> MetricRegistry:
    """Return the metrics of a server in either mode; its parts add theirs."""
    registry = MetricRegistry()
    registry.add(
        (*METRICS, *tunnel_metrics(PREFIX, "node")),
        lambda: tunnel_stats(counters, memory, sessions(), lambda session: session.node),
    )
    return registry


class ServerProcess:
    """The parts that need no trust: they exist from the start until the end.

    ``certificates()`` returns the expiry of each certificate in use, ``expected`` knows which nodes
    should exist. ``lost_nodes`` must be notified of sessions that end, and ``history`` stores the
    past of nodes. ``meta`` listens on ``--meta-port``. Other parts set ``sessions``, a function
    that returns the sessions with agents, ``forwards`` for ``--forward``, ``steering``, a function
    that returns how callers are redirected here, ``listeners`` and ``pooled_streams`` for the
    status page, and ``add_node_section``, how a node is added; they add to ``readiness`` and
    ``metrics``. ``failures`` are failed requests of callers, ``requests`` counts requests to
    kubelets. ``audit`` is the audit log, ``None`` without one. ``live`` has the settings that
    change, by ``following`` their file if there is one.
    """

    def __init__(
        self,
        reactor: IReactor,
        settings: Settings,
        certificates: Callable[[], Mapping[str, datetime.datetime]],
        expected: ExpectedNodes,
        following: ConfigurationReloader[Settings] | None = None,
    ) -> None:
        counters = TunnelCounters()
        budget = MemoryBudget(MEMORY_BUDGET)
        self.context = SessionContext(reactor, counters, budget, RefuseStreams())
        self.registry = SessionRegistry(reactor)
        self.history = NodeHistory(reactor)
        self.lost_nodes = LostNodes(self.registry, self.history, expected)
        self.sessions: Callable[[], Iterable[TunnelSession]] = tuple
        self.failures = Failures(reactor)
        self.requests = InterceptionCounters()
        self.listeners: Callable[[], Sequence[ListenerInfo]] = tuple
        self.pooled_streams: Callable[[], Iterable[tuple[TunnelStream, str]]] = tuple
        self.add_node_section: Section | None = None
        self.forwards: Forwards | None = None
        self.steering: Callable[[], SteeringReport | None] = lambda: None
        self.live = LiveSettings(settings)
        self.readiness = Readiness()
        self.metrics = server_registry(counters, budget, self._snapshots)
        nodes = NodePages(self.registry, self.history, self.lost_nodes, self.failures)
        listener_section = ListenerSection(
            counters, lambda: self.sessions(), lambda: self.listeners()
        )
        sources = StatusSources(
            program="yurttunnel-server",
            readiness=self.readiness,
            certificates=certificates,
            peers=Peers(
                reactor,
                terms=NODES,
                counters=counters,
                sessions=lambda: self.sessions(),
                snapshots=self._snapshots,
                pooled_streams=lambda: self.pooled_streams(),
                one=NodeView(self.registry, self.history, nodes, self.failures, NODES).sections,
            ),
            sections=[
                lambda moment: lost_section(self.lost_nodes.newest_first(), moment, NODES),
                listener_section.section,
                lambda _: steering_section(self.steering()),
                lambda _: self.add_node_section,
            ],
            failures=self.failures,
            requests=self._requests,
            durations={"request": self.requests.durations, "dial": counters.dial_durations},
        )
        self.meta = MetaPort(
            reactor,
            ("--meta-port", settings.insecure_address, settings.meta_port),
            sources,
            self.metrics,
            PREFIX,
            features=[nodes.page(), steering_page(lambda: self.steering())],
        )
        if following is not None:
            following.follow(LIVE_FLAGS, self.live.apply, self.readiness)
            following.setServiceParent(self.meta)
        self.audit: Audit | None = None
        if settings.audit is not None:
            self.audit = self._open_audit(reactor, settings.audit)

    def _requests(self) -> int:
        """Return how many requests to kubelets, and streams of other callers, have ended."""
        traffic = self.context.counters.traffic
        streams = sum(each.streams for (kind, _), each in traffic.items() if kind in _FOR_CALLERS)
        return self.requests.completed.total() + streams

    def _snapshots(self) -> Iterator[SessionSnapshot]:
        return (session.snapshot() for session in self.sessions())

    def _open_audit(self, reactor: IReactor, settings: AuditSettings) -> Audit:
        """Open the audit log, which is closed after everything that writes to it."""
        try:
            sink = open_sink(settings)
        except OSError as error:
            raise SystemExit(
                f"--audit-log-path: {settings.path} cannot be opened: {error.strerror}"
            ) from None
        log = AuditLog(reactor, sink, partial(run_in_new_thread, reactor, "yurttunnel audit log"))
        log.setServiceParent(self.meta)
        self.metrics.add(AUDIT_METRICS, lambda: log.stats)
        self.readiness.add("audit log", lambda: log.problem, required=False)
        return Audit(reactor, log.write)
