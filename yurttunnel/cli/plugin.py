"""``kubectl yurttunnel``: the commands for a cluster, and the alternatives to the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from yurttunnel.cli.command_set import Commands
from yurttunnel.cli.commands import all_commands
from yurttunnel.cli.nodes import NODES
from yurttunnel.cli.options import PLUGIN_NAME
from yurttunnel.cli.status import STATUS, StatusOptions
from yurttunnel.ops.help import Example

_IN_POD = "{name} is for a process: in a server's pod, kubectl exec POD -- yurttunnel {name}"

_ALTERNATIVES = {
    "token": "{name}: a cluster has no join tokens, its agents get their certificates from it",
    "forward": _IN_POD,
    "logs-level": _IN_POD,
    "diagnose": f"{_IN_POD} -o /dev/shm/server.tar.gz",
    "revoke": "{name}: in a cluster a node is cut off by kubectl delete node NODE; remove its"
    " kubelet's credentials, too, or it registers again",
}
"""The alternatives by the first word of a command; all others run on the server's machine."""

_NOT_FOR_CLUSTERS = "{name} does not query a cluster: run it without kubectl, yurttunnel {name}"


def is_plugin(path: str) -> bool:
    """Return whether kubectl runs this command, which finds plugins by their file names."""
    return os.path.basename(path).startswith("kubectl-")


class _StatusOptions(StatusOptions):
    """Options of ``kubectl yurttunnel status``."""

    longdesc = """Shows the servers of the cluster: whether they are ready, their problems, and the
    number of nodes connected to each. The exit status is 0 if all are ready, else 1."""

    examples = (Example("Show all servers"), Example("The same for programs", "-o json"))


_STATUS = replace(STATUS, text="show the servers and their problems", make_options=_StatusOptions)

PLUGIN_COMMANDS = Commands(
    PLUGIN_NAME,
    {"Inspect a cluster": [replace(each, behind_kubectl=True) for each in (_STATUS, *NODES)]},
)
"""The commands of the plugin."""


def alternative_to(arguments: Sequence[str]) -> str:
    """Return the alternative to a command of ``yurttunnel`` that the plugin lacks, or nothing.

    The command is the one that ``arguments`` begin with, or has their first word as its first.
    """
    first, second = (*arguments, "")[:2]
    others = {each.name for each in all_commands().each()} - {
        each.name for each in PLUGIN_COMMANDS.each()
    }
    if first not in {name.split()[0] for name in others}:
        return ""
    name = f"{first} {second}" if f"{first} {second}" in others else first
    return _ALTERNATIVES.get(first, _NOT_FOR_CLUSTERS).format(name=name)
