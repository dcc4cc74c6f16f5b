"""The parts list of an agent without a cluster, and its message on a terminal."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from twisted.application.service import IService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.agent.process import AgentProcess
from yurttunnel.agent.server_addresses import FixedAddresses
from yurttunnel.agent.server_endpoint import server_endpoint
from yurttunnel.agent.settings import Settings, StandaloneSettings
from yurttunnel.agent.trust import AgentTrust
from yurttunnel.http.authority import join_authority
from yurttunnel.ops.announcement import Announcement, terminal
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.systemd import NotifyingService
from yurttunnel.pki.directory import LockedDirectory, StateDirectory
from yurttunnel.pki.enrolment_client import ENROLLED_AT, ServerAddress
from yurttunnel.pki.enrolment_issuer import NODE_FILE, EnrolledTemplate, EnrolmentIssuer, NodeStore
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.names import check_node_name
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import STANDALONE_SCHEDULE
from yurttunnel.pki.token import JoinToken
from yurttunnel.tunnel.reactor import IReactor


def build(
    reactor: IReactor,
    settings: Settings,
    mode: StandaloneSettings,
    following: ConfigurationReloader[Settings] | None = None,
) -> IService:
    """Compose the agent; raises ``StateError``, ``BadIdentity`` and ``BadToken``."""
    if mode.has_join_token and not os.path.exists(mode.state_dir / NODE_FILE):
        # The token will be needed, and nothing has been created yet: errors are reported early.
        mode.read_join_token()
    held = LockedDirectory(mode.state_dir)
    servers = [
        # Each attempt to enroll begins with another address of a name.
        ServerAddress(host, port, server_endpoint(reactor, host, port, itertools.count().__next__))
        for host, port in settings.servers
    ]

    trust = enrolled_trust(
        reactor,
        mode.state_dir,
        settings.node_name,
        settings.identifiers,
        servers,
        mode.read_join_token if mode.has_join_token else None,
    )
    process = AgentProcess(
        reactor,
        settings,
        trust,
        FixedAddresses(settings.servers),
        lambda: settings.identifiers,
        following=following,
    )
    admin = process.meta.admin_socket(mode.state_dir, settings.node_name)
    announcement = greeting(reactor, process.readiness, settings, terminal())
    # The port comes first: if it is in use, nothing else has started. It is closed last. The
    # directory, and the socket in it, are released as soon as the shutdown begins.
    parts = (process.meta, trust, process.agent, held, admin, announcement)
    return NotifyingService(reactor, process.readiness, *parts)


def enrolled_trust(
    clock: IReactorTime,
    state_dir: str | Path,
    node: str,
    identifiers: Identifiers,
    servers: Sequence[ServerAddress],
    read_token: Callable[[], JoinToken] | None,
) -> AgentTrust:
    """Return the trust of a node that enrolls at one of ``servers``, with the state in
    ``state_dir``.

    Raises :class:`StateError`, also if the state is another node's, and :class:`BadIdentity` for a
    name that no node can have.
    """
    check_node_name(node)
    template = EnrolledTemplate(node, identifiers)
    store = NodeStore(StateDirectory.open(state_dir))
    issuer = EnrolmentIssuer(clock, servers, template, store, read_token)
    certificate = CertificateRenewal(
        clock,
        f"certificate of node {node}",
        issuer,
        store,
        STANDALONE_SCHEDULE,
        lambda: template,
        template.problem,
        key=issuer.key,
    )
    return AgentTrust(clock, certificate, expected=ENROLLED_AT)


def greeting(
    clock: IReactorTime, readiness: Readiness, settings: Settings, terminal: TextIO | None
) -> Announcement | None:
    """Return the announcement of the message on ``terminal``, if there is one.

    If only the destinations in ``--allow-destination`` are allowed, the user knows how to reach
    them.
    """
    if terminal is None or not settings.keep_default_destinations:
        return None
    return Announcement(clock, readiness, partial(print_greeting, settings, terminal))


def print_greeting(settings: Settings, terminal: TextIO) -> None:
    """Print the command with which the server reaches a port of this machine."""
    node = settings.node_name
    target = join_authority(str(settings.node_ip), 80)
    loopback = "127.0.0.1" if settings.node_ip.version == 4 else "[::1]"
    print(
        f"""
This machine is now node {node} of the server. There, this command forwards port 9000 to port 80
here:

  yurttunnel forward add 9000={node}/{target}

On loopback only the kubelet's ports can be reached; for others start this agent with
--allow-destination {loopback}:PORT.
""",
        file=terminal,
        flush=True,
    )
