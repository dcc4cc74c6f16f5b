"""The parts list of an agent without a cluster."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.agent.process import AgentProcess, server_endpoint
from yurttunnel.agent.server_addresses import FixedAddresses
from yurttunnel.agent.settings import Settings, StandaloneSettings
from yurttunnel.agent.trust import EnrolledTrust
from yurttunnel.ops.notify import Supervised
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.held_directory import HeldDirectory
from yurttunnel.pki.standalone import AgentTrust
from yurttunnel.pki.token import JoinToken
from yurttunnel.tunnel.reactor import IReactor


def build(reactor: IReactor, settings: Settings, mode: StandaloneSettings) -> IService:
    """Compose the agent; raises ``StateError`` and ``BadIdentity``."""
    held = HeldDirectory(mode.state_dir)
    servers = [
        ServerAddress(host, server_endpoint(reactor, host, port)) for host, port in settings.servers
    ]

    def read_token() -> JoinToken:
        return JoinToken.parse(mode.read_join_token(settings.node_name))

    has_token = mode.join_token is not None or mode.join_token_file is not None
    trust = AgentTrust.open(
        reactor,
        mode.state_dir,
        settings.node_name,
        settings.identifiers,
        read_token if has_token else None,
    )
    process = AgentProcess(
        reactor,
        settings,
        EnrolledTrust(trust, servers),
        FixedAddresses(settings.servers),
        lambda: settings.identifiers,
    )
    parts = Supervised(reactor, process.readiness)
    # The port comes first: when it is taken, nothing else has begun, and it is closed last. The
    # directory is free as soon as the end begins.
    for part in (process.meta, trust, process.lag, process.agent, held):
        part.setServiceParent(parts)
    return parts
