"""How a node is added: the command without a cluster, and the section of the status page."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.own_addresses import source_address
from yurttunnel.ops.status.markup import Content, element
from yurttunnel.ops.status.sections import Section
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


def join_section(settings: Settings, token: Path) -> Section:
    """Return the section of a server without a cluster; ``token`` is the file of its join token."""
    return _section(
        [
            "Copy the file ",
            element("code", str(token.absolute())),
            f" of {socket.gethostname()} to the node. It is a secret: this page does not show"
            " it. Then, on the node:",
        ],
        agent_command(settings, token.name),
        private_address_warning(settings),
    )


def label_node_section() -> Section:
    """Return the section of a server in a cluster, where a label on a node starts its agent."""
    return _section(
        "Label it as an edge node; the DaemonSet of the agents starts one there:",
        "kubectl label node NODE openyurt.io/is-edge-worker=true",
    )


def _section(how: Content, command: str, warning: str = "") -> Section:
    return Section(
        "add",
        [
            element("h2", "Add a node"),
            element("p", how),
            element("pre", element("code", command)),
            *([element("p", warning)] if warning else []),
        ],
        "events",
    )
