"""``twist yurttunnel-server``: the parts list of the cloud end."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import partial
from typing import Any

from twisted.application.service import IService
from twisted.internet.interfaces import IProtocolFactory

from yurttunnel import __version__
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.log import forward_standard_logging
from yurttunnel.ops.meta import meta_site
from yurttunnel.ops.metrics import Figures, server_registry
from yurttunnel.ops.readiness import Readiness
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.revocation import RevocationFailed, revoke_node
from yurttunnel.pki.standalone import ServerTrust
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.connect import ConnectFactory
from yurttunnel.server.dialing import DialingFactory
from yurttunnel.server.forward import ForwardFactory
from yurttunnel.server.options import Options, Settings
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.service import Listener, ServerService
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.tunnel.sockets import tune_session_socket
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.hello import Limits

__all__ = ["Options", "makeService"]

MEMORY_BUDGET = 512 * 1024 * 1024
"""What the streams of all sessions may be promised together, bytes."""


def makeService(options: Options) -> IService:
    """Build the server from its command line; what is wrong ends the process with a sentence."""
    from twisted.internet import reactor

    settings = options.settings
    try:
        if settings.revoke_node is not None:
            print(revoke_node(reactor, settings.state_dir, settings.revoke_node))
            raise SystemExit(0)
        return build(with_transports(reactor, settings.transport), settings)
    except StateError as error:
        raise SystemExit(f"--state-dir: {error}") from None
    except RevocationFailed as error:
        raise SystemExit(f"--revoke-node: {error}") from None


def build(reactor: Any, settings: Settings) -> IService:
    """Compose the server's parts."""
    counters = TunnelCounters()
    budget = MemoryBudget(MEMORY_BUDGET)
    context = SessionContext(reactor, counters, budget, RefuseStreams())
    registry = SessionRegistry(reactor)
    trust = ServerTrust.open(
        reactor,
        settings.state_dir,
        bind_addresses=[settings.bind_address],
        names=[*settings.certificate_names, *map(str, settings.certificate_addresses)],
        node_lifetime=settings.node_certificate_lifetime,
        token_lifetime=settings.join_token_lifetime,
    )
    agents = AgentListener(
        context,
        registry,
        trust.revocations.is_revoked,
        AgentListenerSettings(
            limits=Limits(resume_window=round(settings.resume_window * 1000)),
            return_grace=settings.return_grace,
            name="server",
            software=__version__,
        ),
        others={ENROLMENT_PROTOCOL: partial(trust.enrolment_factory.buildProtocol, None)},
    )
    trust.on_revoked(agents.revoke)
    lag = ReactorLag(reactor)
    callers = _callers(reactor, registry, settings)
    readiness = Readiness()

    def certificates() -> Mapping[str, datetime.datetime]:
        return {
            "server": trust.renewal.not_after,
            "ca": trust.authority.certificate.not_valid_after_utc,
        }

    figures = Figures(
        counters=counters,
        sessions=lambda: [session.snapshot() for session in agents.sessions()],
        certificates=certificates,
        memory=budget,
        reactor_lag=lag.worst,
    )
    meta = meta_site(
        reactor, "yurttunnel-server", readiness, server_registry(figures), figures.sessions
    )
    server = ServerService(
        reactor,
        _listeners(reactor, settings, trust, agents, callers, meta),
        agents,
        list(callers.values()),
        settings.drain_timeout,
    )
    readiness.add("listeners", server.not_accepting)
    readiness.add("certificate", lambda: trust.renewal.last_error or None)
    readiness.add("revocations", lambda: trust.revocations.problem)
    # As its children they work until the sessions have ended: a node can be revoked in a drain.
    for part in (trust, lag):
        part.setServiceParent(server)
    forward_standard_logging()
    return server


def _callers(
    reactor: Any, registry: SessionRegistry, settings: Settings
) -> dict[str, DialingFactory]:
    """Make the factories whose connections become streams, by the flag that asks for each."""
    callers: dict[str, DialingFactory] = {
        flag: ConnectFactory(reactor, registry) for flag, _ in settings.connect_endpoints
    }
    for forward in settings.forwards:
        callers[f"--forward {forward.text}"] = ForwardFactory(registry, forward)
    return callers


def _listeners(
    reactor: Any,
    settings: Settings,
    trust: ServerTrust,
    agents: AgentListener,
    callers: Mapping[str, DialingFactory],
    meta: IProtocolFactory,
) -> list[Listener]:
    """Say what to listen on, each with the flag that an error names."""

    tcp = partial(listen_tcp, reactor)
    agent_flag, meta_flag = "--tunnel-agent-connect-port", "--meta-port"
    listen_for_agents = partial(
        tcp,
        agent_flag,
        settings.bind_address,
        settings.agent_port,
        tls.server_side(reactor, trust.contexts, agents),
        tune=tune_session_socket,
    )
    listen_for_meta = partial(tcp, meta_flag, settings.meta_address, settings.meta_port, meta)
    listeners = [
        Listener(agent_flag, listen_for_agents),
        Listener(meta_flag, listen_for_meta, outlives_sessions=True),
    ]
    for flag, endpoint in settings.connect_endpoints:
        listen = partial(endpoint.listen, reactor, flag, callers[flag], trust.callers)
        listeners.append(Listener(flag, listen))
    for forward in settings.forwards:
        flag = f"--forward {forward.text}"
        listen = partial(tcp, flag, forward.listen_host, forward.listen_port, callers[flag])
        listeners.append(Listener(flag, listen))
    return listeners
