"""The command with which a node joins a server without a cluster."""

from __future__ import annotations

import shlex
import socket

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.own_addresses import source_address
from yurttunnel.server.options import Settings

TOKEN_VARIABLE = "YURTTUNNEL_JOIN_TOKEN"
"""The environment variable of the agent's flag ``--join-token``."""


def agent_command(settings: Settings, token_file: str) -> str:
    """Return the command for a node to join with the token in ``token_file``."""
    return shlex.join([*_agent(settings), "--join-token-file", token_file])


def command_with_token(settings: Settings, token: str) -> str:
    """Return the command line for a node to join with ``token``, for authorized readers.

    The token is not a flag: flags are visible to all users of the node in its process list.
    """
    return f"{TOKEN_VARIABLE}={shlex.quote(token)} {shlex.join(_agent(settings))}"


def private_address_warning(settings: Settings) -> str:
    """Return why nodes may not reach the address in these commands, empty if they should.

    Machines in a cloud often have only a private address, which nodes elsewhere cannot reach.
    """
    found = None if _configured_address(settings) else source_address()
    if found is None or found.is_global:
        return ""
    return (
        f"{found} is a private address: if nodes reach this machine at another one, start the"
        " server with --cert-ips ADDRESS"
    )


def _agent(settings: Settings) -> list[str]:
    server = join_authority(_address(settings), settings.agent_port)
    return ["yurttunnel", "agent", "--standalone", "--tunnelserver-addr", server]


def _address(settings: Settings) -> str:
    """Return the address that agents dial: a configured one, or one of this machine."""
    return _configured_address(settings) or str(source_address() or socket.gethostname())


def _configured_address(settings: Settings) -> str:
    """Return the address configured for the certificate or the port; empty if there is none."""
    configured = [*settings.certificate_names, *map(str, settings.certificate_addresses)]
    if settings.bind_address not in ("0.0.0.0", "::"):
        configured.append(settings.bind_address)
    return configured[0] if configured else ""
