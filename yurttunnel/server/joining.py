"""How a node joins a server without a cluster: the command to run on it."""

from __future__ import annotations

import shlex
import socket

from yurttunnel.http.authority import join_authority
from yurttunnel.server.options import Settings

_ELSEWHERE = ("192.0.2.1", 9)
"""An address of no machine (TEST-NET-1 of RFC 5737): nothing is sent there, the kernel is asked
which way it would go."""


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
    return outgoing_address() or socket.gethostname()


def outgoing_address() -> str | None:
    """Return the address with which this machine goes elsewhere by IPv4, ``None`` without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return None
        return str(probe.getsockname()[0])
