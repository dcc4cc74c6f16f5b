"""The section "Add a node" of the status page, with the command."""

from __future__ import annotations

import socket
from pathlib import Path

from yurttunnel.ops.status.markup import Content, element
from yurttunnel.ops.status.sections import Section
from yurttunnel.server.join_command import agent_command, private_address_warning
from yurttunnel.server.options import Settings


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
