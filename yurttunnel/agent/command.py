"""``twist yurttunnel-agent``: the parts list of the edge end."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import partial
from typing import Any

from twisted.application.service import IService
from twisted.internet.endpoints import HostnameEndpoint

from yurttunnel import __version__
from yurttunnel.agent.client import ClientSettings, ServerClient
from yurttunnel.agent.connector import EndpointWithDeadline
from yurttunnel.agent.dialer import Dialer
from yurttunnel.agent.options import Options, Settings
from yurttunnel.agent.policy import DestinationPolicy
from yurttunnel.agent.resolver import NodeResolver
from yurttunnel.agent.service import AgentService, PortService, StoppedInTurn
from yurttunnel.http.authority import join_authority
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.ops.meta import meta_site
from yurttunnel.ops.metrics import Figures, agent_registry
from yurttunnel.ops.readiness import Readiness
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.identity import BadIdentity, format_identifiers
from yurttunnel.pki.standalone import AgentTrust
from yurttunnel.pki.token import JoinToken
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.hello import Limits

__all__ = ["Options", "makeService"]

MEMORY_BUDGET = 256 * 1024 * 1024
"""What the streams of all sessions may be promised together, bytes."""

CONNECT_TIMEOUT = 10.0
"""Seconds for one attempt to connect to a server, names and all addresses included."""


def makeService(options: Options) -> IService:
    """Build the agent from its command line; what is wrong ends the process with a sentence."""
    from twisted.internet import reactor

    try:
        return build(with_transports(reactor, options.settings.transport), options.settings)
    except (StateError, BadIdentity) as error:
        raise SystemExit(f"--state-dir: {error}") from None


def build(reactor: Any, settings: Settings) -> IService:
    """Compose the agent's parts."""
    client_settings = _client_settings(settings)
    counters = TunnelCounters()
    budget = MemoryBudget(MEMORY_BUDGET)
    policy = DestinationPolicy(
        settings.node_name,
        settings.own_addresses,
        settings.allowed_destinations,
        settings.keep_default_destinations,
    )
    resolver = NodeResolver(reactor.nameResolver, settings.own_names)
    dialer = Dialer(reactor, policy, resolver, settings.node_name, counters.dial_durations)
    context = SessionContext(reactor, counters, budget, dialer)
    has_token = settings.join_token is not None or settings.join_token_file is not None
    trust = AgentTrust.open(
        reactor,
        settings.state_dir,
        settings.node_name,
        settings.identifiers,
        (lambda: JoinToken.parse(settings.read_join_token())) if has_token else None,
    )
    endpoints = {
        (host, port): EndpointWithDeadline(
            reactor,
            HostnameEndpoint(
                reactor, host.encode("idna"), port, timeout=CONNECT_TIMEOUT, attemptDelay=0.25
            ),
            CONNECT_TIMEOUT,
            join_authority(host, port),
        )
        for host, port in settings.servers
    }

    def make_clients(contexts: ClientContexts) -> list[ServerClient]:
        clients: list[ServerClient] = []
        for (host, port), endpoint in endpoints.items():
            secured = tls.SessionEndpoint(reactor, contexts.creator(host), endpoint)
            server = join_authority(host, port)
            clients.append(ServerClient(context, server, secured, client_settings, clients))
        return clients

    addresses = [ServerAddress(host, endpoint) for (host, _), endpoint in endpoints.items()]
    agent = AgentService(reactor, trust, addresses, make_clients, dialer, settings.drain_timeout)
    lag = ReactorLag(reactor)
    readiness = Readiness()

    def certificates() -> Mapping[str, datetime.datetime]:
        return {} if trust.renewal is None else {"agent": trust.renewal.not_after}

    figures = Figures(
        counters=counters,
        sessions=lambda: [session.snapshot() for session in agent.sessions()],
        certificates=certificates,
        memory=budget,
        reactor_lag=lag.worst,
    )
    meta = meta_site(
        reactor,
        "yurttunnel-agent",
        readiness,
        agent_registry(figures, agent.failed_attempts),
        figures.sessions,
    )
    readiness.add("servers", agent.not_connected)
    readiness.add("every server", agent.partly_connected, required=False)
    readiness.add("certificate", agent.certificate_problem)
    parts = StoppedInTurn()
    listen = partial(
        listen_tcp, reactor, "--meta-port", settings.meta_host, settings.meta_port, meta
    )
    # The port comes first: when it is taken, nothing else has begun, and it is closed last.
    for part in (PortService(listen), trust, lag, agent):
        part.setServiceParent(parts)
    forward_standard_logging()
    return parts


def _client_settings(settings: Settings) -> ClientSettings:
    """Make what servers are told; one line ends the process when a HELLO cannot hold it."""
    client_settings = ClientSettings(
        node=settings.node_name,
        identifiers=format_identifiers(settings.identifiers),
        limits=Limits(resume_window=round(settings.resume_window * 1000)),
        software=__version__,
    )
    try:
        client_settings.hello().encode()
    except ValueError as error:
        raise SystemExit(
            f"--agent-identifiers: they are too long, {error}: name fewer, as with networks (cidr)"
        ) from None
    return client_settings
