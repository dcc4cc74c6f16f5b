"""What the commands ask a server by its socket, besides the pages of the meta port."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.admin.service import AdminSocket, admin_socket
from yurttunnel.ops.debug.pages import Page
from yurttunnel.server.admin_forwards import ForwardPages
from yurttunnel.server.admin_revocations import RevocationPages
from yurttunnel.server.admin_tokens import TokenPages
from yurttunnel.server.joining import command_with_token
from yurttunnel.server.options import Settings
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.standalone_trust import StandaloneServerTrust
from yurttunnel.tunnel.reactor import IReactor


def server_socket(
    reactor: IReactor,
    settings: Settings,
    directory: Path,
    process: ServerProcess,
    own: Mapping[str, Page],
) -> AdminSocket:
    """Make the socket in ``directory``; ``own`` are the pages of the mode."""
    forwards = ForwardPages(lambda: process.forwards)
    return admin_socket(
        reactor,
        directory,
        "yurttunnel-server",
        process.readiness,
        process.pages,
        process.debug_pages,
        lambda: {"status_page": status_page(settings)},
        {**forwards.pages(), **own},
    )


def standalone_pages(
    reactor: IReactor, settings: Settings, directory: Path, trust: StandaloneServerTrust
) -> dict[str, Page]:
    """Make the pages of a server that is its own authority."""
    tokens = TokenPages(
        trust.tokens,
        trust.join_token,
        trust.revocations,
        lambda token: command_with_token(settings, str(token)),
    )
    return {**tokens.pages(), **RevocationPages(reactor, directory, trust.revocations).pages()}


def status_page(settings: Settings) -> str:
    """Return where the status page is, for a browser on this machine."""
    return f"http://{join_authority(settings.insecure_address, settings.meta_port)}/"
