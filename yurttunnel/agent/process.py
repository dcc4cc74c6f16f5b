"""The parts of an agent process in both modes: the sessions' context, metrics and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from twisted.internet.interfaces import IStreamClientEndpoint

from yurttunnel import __version__
from yurttunnel.agent import options
from yurttunnel.agent.connection_group import MAX_LISTED_SESSIONS, MAX_SERVERS, ClientSettings
from yurttunnel.agent.dialer import Dialer
from yurttunnel.agent.policy import DestinationPolicy
from yurttunnel.agent.resolver import NodeResolver, system_lookups
from yurttunnel.agent.server_addresses import IServerAddresses
from yurttunnel.agent.server_endpoint import server_endpoint
from yurttunnel.agent.servers import METRICS as SERVER_METRICS
from yurttunnel.agent.servers import ServerSet
from yurttunnel.agent.service import AgentService
from yurttunnel.agent.settings import Settings
from yurttunnel.agent.trust import AgentTrust
from yurttunnel.metrics import Metric, MetricRegistry, histogram
from yurttunnel.ops import tunnel_flags
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.meta import MetaPort
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.formatting import PeerTerms
from yurttunnel.ops.status.markup import element
from yurttunnel.ops.status.peers import Peers
from yurttunnel.ops.status.sections import Section
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.pki.identity import Identifiers, format_identifiers
from yurttunnel.steering.page import steering_page
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.tunnel.statistics import (
    SessionSnapshot,
    TunnelCounters,
    TunnelStats,
    tunnel_metrics,
    tunnel_stats,
)
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.hello import Limits

PREFIX = "yurttunnel_agent_"
"""The prefix of the names of metrics."""

MEMORY_BUDGET = 256 * 1024 * 1024
"""The maximum number of bytes that may be promised to the streams of all sessions."""

LIVE_FLAGS = (options.ALLOW_DESTINATION, tunnel_flags.DRAIN_TIMEOUT, options.RESUME_WINDOW)
"""The flags that can change while the agent runs."""

SERVERS = PeerTerms("server", "servers", "about to return")

METRICS: tuple[Metric[TunnelStats], ...] = (
    histogram(
        "konnectivity_network_proxy_agent_dial_duration_seconds",
        "Duration of successful dials of this agent to targets. High values mean slow or distant"
        " targets, not a slow tunnel.",
        lambda stats: stats.counters.dial_durations,
    ),
)

CONNECTION_FAILURES: Metric[tuple[int, int]] = Metric(
    # Not by counter(), which would append _total to the name used by Konnectivity.
    "counter",
    "konnectivity_network_proxy_agent_server_connection_failure_count",
    "Failed connections between this agent and its servers. Direction to_server counts attempts"
    " that failed before the server's HELLO (check address, firewall and certificates);"
    " from_server counts established connections that broke (check the network).",
    lambda failures: zip(("from_server", "to_server"), failures, strict=True),
    ("direction",),
)


class AgentProcess:
    """The parts of the agent, except those of the mode.

    ``trust`` and ``addresses`` are those of the mode. ``identifiers()`` returns the identifiers for
    the servers. Servers are verified by ``server_name``, or, if that is ``None``, by the dialed
    host. ``expected`` is that of :class:`ServerSet`. ``following`` follows the file of the
    settings, if there is one. ``agent`` and ``meta`` are services; the mode adds to
    ``readiness`` and ``metrics``.
    """

    def __init__(
        self,
        reactor: IReactor,
        settings: Settings,
        trust: AgentTrust,
        addresses: IServerAddresses,
        identifiers: Callable[[], Identifiers],
        *,
        server_name: str | None = None,
        expected: int | None = None,
        following: ConfigurationReloader[Settings] | None = None,
    ) -> None:
        client_settings = _client_settings(settings, identifiers)
        counters = TunnelCounters()
        budget = MemoryBudget(MEMORY_BUDGET)
        policy = DestinationPolicy(
            settings.node_name,
            settings.own_addresses,
            settings.allowed_destinations,
            settings.keep_default_destinations,
            meta_port=settings.meta_port,
        )
        resolver = NodeResolver(system_lookups(reactor), settings.own_names)
        dialer = Dialer(reactor, policy, resolver, settings.node_name, counters.dial_durations)
        context = SessionContext(reactor, counters, budget, dialer)

        def tls_endpoint(host: str, port: int, skip: int) -> IStreamClientEndpoint:
            creator = trust.creator(server_name or host)
            endpoint = server_endpoint(reactor, host, port, lambda: skip)
            return tls.TLSEndpoint(reactor, creator, endpoint)

        servers = ServerSet(
            context, client_settings, tls_endpoint, settings.server_connections, expected
        )
        self.agent = AgentService(
            reactor, trust, addresses, servers, dialer, settings.drain_timeout
        )
        self.metrics = agent_registry(
            counters, budget, self._snapshots, self.agent.servers.failed_attempts
        )
        self.metrics.add(SERVER_METRICS, self.agent.stats)
        self.readiness = Readiness()
        self.readiness.add("servers", self.agent.problem)
        self.readiness.add("every server", self.agent.warning, required=False)
        self.readiness.add("certificate", trust.problem)
        self.readiness.add("certificate renewal", trust.warning, required=False)
        sources = StatusSources(
            program="yurttunnel-agent",
            readiness=self.readiness,
            certificates=trust.certificates,
            peers=Peers(
                reactor,
                terms=SERVERS,
                counters=counters,
                sessions=self.agent.servers.sessions,
                snapshots=self._snapshots,
            ),
            sections=[lambda _: destination_section(policy.describe())],
        )
        self.meta = MetaPort(
            reactor,
            ("--meta-port", settings.meta_host, settings.meta_port),
            sources,
            self.metrics,
            PREFIX,
            features=[steering_page(lambda: None)],
            is_tunnelled=dialer.sockets.contains,
        )
        if following is not None:
            self._follow(following, policy, client_settings)

    def _follow(
        self,
        following: ConfigurationReloader[Settings],
        policy: DestinationPolicy,
        client_settings: ClientSettings,
    ) -> None:
        """Apply changes in the file of ``--config`` while the agent runs."""

        def use(settings: Settings) -> None:
            policy.use(settings.allowed_destinations, settings.keep_default_destinations)
            self.agent.drain_timeout = settings.drain_timeout
            client_settings.limits = _limits(settings)

        following.follow(LIVE_FLAGS, use, self.readiness)
        following.setServiceParent(self.meta)

    def _snapshots(self) -> Iterator[SessionSnapshot]:
        return (session.snapshot() for session in self.agent.servers.sessions())


def agent_registry(
    counters: TunnelCounters,
    memory: MemoryBudget,
    sessions: Callable[[], Iterable[SessionSnapshot]],
    failed_attempts: Callable[[], int],
) -> MetricRegistry:
    """Return the metrics of an agent in either mode; its parts add theirs.

    ``failed_attempts`` returns the number of attempts to connect to a server, since the process
    started, that ended before the server's HELLO.
    """
    registry = MetricRegistry()
    registry.add(
        (*METRICS, *tunnel_metrics(PREFIX, "server")),
        lambda: tunnel_stats(counters, memory, sessions(), lambda session: session.address),
    )
    registry.add((CONNECTION_FAILURES,), lambda: (counters.connections_lost, failed_attempts()))
    return registry


def destination_section(destinations: Sequence[str]) -> Section:
    """Return the section of the allowed destinations."""
    content = [
        element("h2", "May be dialed"),
        element("ul", [element("li", each) for each in destinations]),
    ]
    return Section("destinations", content, "streams")


def check_identifiers(settings: Settings) -> None:
    """End the process with a one-line error if a HELLO cannot hold all identifiers."""
    client_settings = _client_settings(settings, lambda: settings.identifiers)
    try:
        held = [client_settings.process] * MAX_SERVERS
        kept = [client_settings.process] * MAX_LISTED_SESSIONS
        client_settings.hello(held=held, kept=kept).encode()
    except ValueError as error:
        raise SystemExit(
            f"--agent-identifiers: they are too long, {error}: name fewer, as with networks (cidr)"
        ) from None


def _client_settings(settings: Settings, identifiers: Callable[[], Identifiers]) -> ClientSettings:
    """Return the client settings; :func:`check_identifiers` has checked that they fit a HELLO."""
    return ClientSettings(
        node=settings.node_name,
        identifiers=lambda: format_identifiers(identifiers()),
        limits=_limits(settings),
        software=__version__,
    )


def _limits(settings: Settings) -> Limits:
    return Limits(resume_window=round(settings.resume_window * 1000))
