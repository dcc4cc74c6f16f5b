"""``kubectl yurttunnel``: what asks a cluster, and what there is in place of the rest."""

from __future__ import annotations

import os

from yurttunnel.cli.diagnosing import DIAGNOSE
from yurttunnel.cli.forwards import FORWARDS
from yurttunnel.cli.logs import LOGS_LEVEL
from yurttunnel.cli.nodes import NODES
from yurttunnel.cli.options import Command
from yurttunnel.cli.revoking import REVOKE
from yurttunnel.cli.status import STATUS
from yurttunnel.cli.tokens import TOKENS

ASKING = (STATUS, *NODES)

_IN_POD = "{name} is for a process: in a server's pod, kubectl exec POD -- yurttunnel {name}"

_INSTEAD = {
    **dict.fromkeys(
        (each.name for each in TOKENS),
        "{name}: a cluster has no join tokens, its agents get their certificates from it",
    ),
    **dict.fromkeys((each.name for each in (*FORWARDS, LOGS_LEVEL)), _IN_POD),
    DIAGNOSE.name: f"{_IN_POD} -o /dev/shm/server.tar.gz",
    REVOKE.name: "{name}: in a cluster a node is cut off by kubectl delete node NODE; take its"
    " kubelet's credentials away, too, or it registers anew",
}
"""By the names of commands; all others are for the machine on which they are run."""

_HERE = "{name} asks no cluster: run it without kubectl, yurttunnel {name}"


def is_plugin(path: str) -> bool:
    """Return whether it is kubectl that runs this, which finds its plugins by their names."""
    return os.path.basename(path).startswith("kubectl-")


def instead(command: Command) -> str:
    """Return what to do in place of a command that asks no cluster; empty for one that does."""
    return "" if command in ASKING else _INSTEAD.get(command.name, _HERE).format(name=command.name)
