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


def address_doubt(settings: Settings) -> str:
    """Return why the address in these commands may not lead here from a node, empty if it should.

    Machines of a cloud often have only a private address, which nodes elsewhere do not reach.
    """
    found = None if _given_address(settings) else outgoing_address()
    if found is None or found.is_global:
        return ""
    return (
        f"{found} is a private address: if nodes know this machine by another one, start the"
        " server with --cert-ips ADDRESS"
    )


def _agent(settings: Settings) -> list[str]:
    server = join_authority(_address(settings), settings.agent_port)
    return ["yurttunnel", "agent", "--standalone", "--tunnelserver-addr", server]


def _address(settings: Settings) -> str:
    """Return what agents dial: what somebody has given, or an address of ours."""
    return _given_address(settings) or str(outgoing_address() or socket.gethostname())


def _given_address(settings: Settings) -> str:
    """Return what somebody has given of the certificate or the port; empty for nothing."""
    given = [*settings.certificate_names, *map(str, settings.certificate_addresses)]
    if settings.bind_address not in ("0.0.0.0", "::"):
        given.append(settings.bind_address)
    return given[0] if given else ""
