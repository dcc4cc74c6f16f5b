"""The parts list of a server without a cluster: its trust is an embedded authority."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from twisted.application.service import IService

from yurttunnel.ops.announcement import Announcement, terminal
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.services import CloseOnStop
from yurttunnel.ops.systemd import NotifyingService
from yurttunnel.ops.threads import run_in_new_thread
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.directory import LockedDirectory
from yurttunnel.pki.token import JOIN_TOKEN_FILE
from yurttunnel.server.add_node_section import join_section
from yurttunnel.server.admin import server_socket, standalone_pages
from yurttunnel.server.expected_nodes import EnrolledNodes
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.frontends.kubelet.middleware import (
    IMiddleware,
    find_middlewares,
    installed_makers,
)
from yurttunnel.server.history_file import HistoryFile
from yurttunnel.server.listeners import Trust, agent_listener, server_service
from yurttunnel.server.options import Settings, StandaloneSettings
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.standalone_trust import StandaloneServerTrust
from yurttunnel.server.startup_message import print_startup_message
from yurttunnel.tunnel.reactor import IReactor


def build(
    reactor: IReactor,
    settings: Settings,
    standalone: StandaloneSettings,
    following: ConfigurationReloader[Settings] | None = None,
) -> IService:
    """Compose the server's parts; raises ``StateError``, ``BadBundle`` and ``BadMiddleware``."""
    directory_lock = LockedDirectory(standalone.state_dir)
    plugins = _plugins(reactor, settings.middlewares)
    own = _open_trust(reactor, settings, standalone)
    enrolled = EnrolledNodes(own.records, own.revocations)
    process = ServerProcess(reactor, settings, own.certificates, enrolled, following)
    process.registry.belongs_to_other_node = own.ownership.belongs_to_other_node
    process.registry.nodes_with_address = own.ownership.nodes_with
    trust = Trust(
        agents=own.contexts,
        secure=own.interception,
        connect=own.callers,
        kubelets=own.kubelets,
        identify=own.identify,
        is_revoked=own.revocations.is_revoked,
    )
    enrolment = partial(own.enrolment_factory.buildProtocol, None)
    agents = agent_listener(process, trust, {ENROLMENT_PROTOCOL: enrolment})
    own.on_revoked(agents.revoke)

    def nodes_named(host: str) -> Collection[str]:
        return (host,) if own.revocations.is_enrolled(host) else ()

    token = standalone.state_dir / JOIN_TOKEN_FILE
    process.add_node_section = join_section(settings, token)
    middlewares = [HostNames(process.registry, nodes_named), *plugins]
    server = server_service(reactor, settings, process, trust, agents, middlewares)
    readiness = process.readiness
    readiness.add("listeners", server.not_accepting)
    readiness.add("certificate", own.problem)
    readiness.add("revocations", lambda: own.revocations.problem)
    # What is in use stays in use, so these are reported without affecting readiness.
    readiness.add("room for revocations", lambda: own.revocations.warning, required=False)
    readiness.add("certificate renewal", own.serving.warning, required=False)
    readiness.add("enrolment", own.enrolment_factory.problem, required=False)
    readiness.add("kubelet trust", own.kubelet_problem, required=False)
    in_thread = partial(run_in_new_thread, reactor, "yurttunnel node history")
    history = HistoryFile(reactor, own.directory, process.history, in_thread)
    readiness.add("node history", lambda: history.problem, required=False)
    parts = NotifyingService(reactor, readiness)
    pages = standalone_pages(reactor, settings, standalone.state_dir, own)
    print_message = partial(
        print_startup_message,
        settings,
        standalone.state_dir,
        process.meta.url,
        own.join_token,
        terminal(),
    )
    startup_message = (
        Announcement(reactor, readiness, print_message) if settings.prints_startup_message else None
    )
    admin = server_socket(standalone.state_dir, process, pages)
    # The trust ends after the sessions: a node can be revoked during a drain. The directory, and
    # the socket in it, are released when the drain begins, once the history has been written: a
    # successor may start meanwhile.
    release_directory = CloseOnStop(own.release_directory)
    for part in (
        process.meta,
        own,
        server,
        directory_lock,
        release_directory,
        history,
        admin,
        startup_message,
    ):
        if part is not None:
            part.setServiceParent(parts)
    return parts


def _open_trust(
    reactor: IReactor, settings: Settings, standalone: StandaloneSettings
) -> StandaloneServerTrust:
    return StandaloneServerTrust(
        reactor,
        standalone.state_dir,
        bind_addresses=[settings.bind_address],
        names=[*settings.certificate_names, *map(str, settings.certificate_addresses)],
        node_lifetime=standalone.node_certificate_lifetime,
        token_lifetime=standalone.join_token_lifetime,
        kubelet_verify=settings.kubelet_verify,
        kubelet_ca=settings.kubelet_ca,
    )


def _plugins(reactor: IReactor, names: Sequence[str]) -> list[IMiddleware]:
    """Return the requested middlewares; plugins are searched for only if there are any."""
    return find_middlewares(reactor, names, installed_makers()) if names else []
