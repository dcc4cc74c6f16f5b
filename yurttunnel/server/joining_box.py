"""The box "Add a node" of the status page: the command for the node, and where its secret is."""

from __future__ import annotations

import socket
from pathlib import Path

from yurttunnel.ops.status.markup import element
from yurttunnel.ops.status.sections import Section
from yurttunnel.server.joining import agent_command
from yurttunnel.server.options import Settings


def add_section(settings: Settings, token: Path) -> Section:
    """Make the section of a server without a cluster; ``token`` is the file of its join token."""
    return Section(
        "add",
        [
            element("h2", "Add a node"),
            element(
                "p",
                "Copy the file ",
                element("code", str(token.absolute())),
                f" of {socket.gethostname()} to the node. It is a secret: this page does not show"
                " it. Then, on the node:",
            ),
            element("pre", element("code", agent_command(settings, token.name))),
        ],
        "events",
    )
