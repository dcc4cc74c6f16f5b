"""``kubectl yurttunnel``: what asks a cluster, and what there is in place of the rest."""

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

_INSTEAD = {
    "token": "{name}: a cluster has no join tokens, its agents get their certificates from it",
    "forward": _IN_POD,
    "logs-level": _IN_POD,
    "diagnose": f"{_IN_POD} -o /dev/shm/server.tar.gz",
    "revoke": "{name}: in a cluster a node is cut off by kubectl delete node NODE; take its"
    " kubelet's credentials away, too, or it registers anew",
}
"""By the first words of commands; all others are for the machine on which they are run."""

_HERE = "{name} asks no cluster: run it without kubectl, yurttunnel {name}"


def is_plugin(path: str) -> bool:
    """Return whether it is kubectl that runs this, which finds its plugins by their names."""
    return os.path.basename(path).startswith("kubectl-")


class _StatusOptions(StatusOptions):
    """Options of ``kubectl yurttunnel status``."""

    longdesc = """Shows the servers of the cluster: whether they are ready, their problems, and the
    number of nodes connected to each. The exit status is 0 if all are ready, else 1."""

    examples = (Example("Show all servers"), Example("The same for programs", "-o json"))


_STATUS = replace(STATUS, text="show the servers and their problems", make_options=_StatusOptions)

ASKING = Commands(
    PLUGIN_NAME,
    {"Inspect a cluster": [replace(each, behind_kubectl=True) for each in (_STATUS, *NODES)]},
)
"""The commands that there are."""


def instead(arguments: Sequence[str]) -> str:
    """Return what to do in place of a command of ``yurttunnel``; empty for one that asks, or none.

    It is the one with which ``arguments`` begin, or one of two words of which there is the first.
    """
    first, second = (*arguments, "")[:2]
    others = {each.name for each in all_commands().each()} - {each.name for each in ASKING.each()}
    if first not in {name.split()[0] for name in others}:
        return ""
    name = f"{first} {second}" if f"{first} {second}" in others else first
    return _INSTEAD.get(first, _HERE).format(name=name)
