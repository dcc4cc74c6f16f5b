"""How a node joins a server without a cluster: the command to run on it."""

from __future__ import annotations

import shlex
import socket

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.own_addresses import outgoing_address
from yurttunnel.server.options import Settings


def agent_command(settings: Settings, *token: str) -> str:
    """Return the command that has a node join, with the flags ``token`` to do so."""
    server = join_authority(_address(settings), settings.agent_port)
    return shlex.join(
        ["yurttunnel", "agent", "--standalone", "--tunnelserver-addr", server, *token]
    )


def _address(settings: Settings) -> str:
    """Return what agents dial: a name or address of the certificate, or an address of ours."""
    given = [*settings.certificate_names, *map(str, settings.certificate_addresses)]
    if given:
        return given[0]
    if settings.bind_address not in ("0.0.0.0", "::"):
        return settings.bind_address
    return str(outgoing_address() or socket.gethostname())
