"""How a node joins a server without a cluster: the command to run on it."""

from __future__ import annotations

import shlex
import socket

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.own_addresses import outgoing_address
from yurttunnel.server.options import Settings

TOKEN_VARIABLE = "YURTTUNNEL_JOIN_TOKEN"
"""What stands in for the agent's flag ``--join-token``."""


def agent_command(settings: Settings, token_file: str) -> str:
    """Return the command that has a node join with the token in ``token_file``."""
    return shlex.join([*_agent(settings), "--join-token-file", token_file])


def command_with_token(settings: Settings, token: str) -> str:
    """Return the line that has a node join with ``token``, for whoever may see it.

    It is no flag there: those are shown to every user of the node in its list of processes.
    """
    return f"{TOKEN_VARIABLE}={shlex.quote(token)} {shlex.join(_agent(settings))}"


def _agent(settings: Settings) -> list[str]:
    server = join_authority(_address(settings), settings.agent_port)
    return ["yurttunnel", "agent", "--standalone", "--tunnelserver-addr", server]


def _address(settings: Settings) -> str:
    """Return what agents dial: a name or address of the certificate, or an address of ours."""
    given = [*settings.certificate_names, *map(str, settings.certificate_addresses)]
    if given:
        return given[0]
    if settings.bind_address not in ("0.0.0.0", "::"):
        return settings.bind_address
    return str(outgoing_address() or socket.gethostname())
