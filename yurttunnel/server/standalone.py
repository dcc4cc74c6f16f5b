"""The parts list of a server without a cluster, and its startup message.

Its trust is an embedded authority.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TextIO

from twisted.application.service import IService
from twisted.logger import Logger

from yurttunnel.ops.announcement import Announcement, terminal
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.services import CloseOnStop
from yurttunnel.ops.systemd import NotifyingService
from yurttunnel.ops.threads import run_in_new_thread
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.directory import LockedDirectory, StateError
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.token import JOIN_TOKEN_FILE
from yurttunnel.server.admin import server_socket, standalone_pages
from yurttunnel.server.expected_nodes import EnrolledNodes
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.frontends.kubelet.middleware import find_middlewares
from yurttunnel.server.history_file import HistoryFile
from yurttunnel.server.join_command import (
    agent_command,
    command_with_token,
    join_section,
    private_address_warning,
)
from yurttunnel.server.listeners import agent_listener, server_service
from yurttunnel.server.options import Settings, StandaloneSettings
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.standalone_trust import StandaloneServerTrust
from yurttunnel.tunnel.reactor import IReactor


def build(
    reactor: IReactor,
    settings: Settings,
    standalone: StandaloneSettings,
    following: ConfigurationReloader[Settings] | None = None,
) -> IService:
    """Compose the server's parts; raises ``StateError``, ``BadBundle`` and ``BadMiddleware``."""
    directory_lock = LockedDirectory(standalone.state_dir)
    plugins = find_middlewares(reactor, settings.middlewares)
    own = _open_trust(reactor, settings, standalone)
    enrolled = EnrolledNodes(own.records, own.revocations)
    process = ServerProcess(reactor, settings, own.certificates, enrolled, following)
    process.registry.belongs_to_other_node = own.ownership.belongs_to_other_node
    process.registry.nodes_with_address = own.ownership.nodes_with
    enrolment = partial(own.enrolment_factory.buildProtocol, None)
    is_revoked = own.revocations.is_revoked
    agents = agent_listener(process, own, is_revoked, {ENROLMENT_PROTOCOL: enrolment})
    own.on_revoked(agents.revoke)

    def nodes_named(host: str) -> Collection[str]:
        return (host,) if own.revocations.is_enrolled(host) else ()

    token = standalone.state_dir / JOIN_TOKEN_FILE
    process.add_node_section = join_section(settings, token)
    middlewares = [HostNames(process.registry, nodes_named), *plugins]
    server = server_service(reactor, settings, process, own, agents, middlewares)
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
    return NotifyingService(
        reactor,
        readiness,
        process.meta,
        own,
        server,
        directory_lock,
        release_directory,
        history,
        admin,
        startup_message,
    )


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


_log = Logger()


def print_startup_message(
    settings: Settings,
    state_dir: Path,
    status_page: str,
    token: JoinTokenFile,
    terminal: TextIO | None,
) -> None:
    """Print the message on the terminal, with the join token; without one, log it with the file.

    Logs are stored and passed on, so they must not contain secrets.
    """
    file = state_dir.absolute() / JOIN_TOKEN_FILE
    warning = private_address_warning(settings)
    if terminal is None:
        _log.info(
            "ready; status page: {page}; join token: {file}; with a copy of that file on a node:"
            " {command}{doubt}",
            page=status_page,
            file=str(file),
            command=agent_command(settings, JOIN_TOKEN_FILE),
            doubt=warning and f"; {warning}",
        )
        return
    try:
        held = token.read()
    except StateError as error:
        _log.warn("the join token cannot be shown: {error}", error=error)
        return
    if held is None:
        # The next check recreates it.
        return
    command = command_with_token(settings, str(held))
    print(_text(status_page, file, command, warning), file=terminal, flush=True)


def _text(status_page: str, file: Path, command: str, warning: str) -> str:
    shown = f"  {command}\n\n{warning}".rstrip()
    return f"""
The server is ready. Its status page is {status_page}

To add a node, run this on it. Anyone who has its token can add a node:

{shown}

The token is in {file}, too; the server replaces it before it expires. In another terminal:

  yurttunnel nodes                             which nodes are connected
  yurttunnel forward add 9000=NODE/NODE:80     forward port 9000 here to port 80 of a node
  yurttunnel token create                      another token
"""
