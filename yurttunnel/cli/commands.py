"""All commands of ``yurttunnel``."""

from __future__ import annotations

from yurttunnel.cli.command_set import Commands
from yurttunnel.cli.config import CONFIG_CHECK
from yurttunnel.cli.diagnose import DIAGNOSE
from yurttunnel.cli.forwards import FORWARDS
from yurttunnel.cli.logs import LOGS_LEVEL
from yurttunnel.cli.nodes import NODES, REVOKE
from yurttunnel.cli.options import PROGRAM_NAME
from yurttunnel.cli.programs import PROGRAMS
from yurttunnel.cli.shell import shell_commands
from yurttunnel.cli.status import STATUS
from yurttunnel.cli.tokens import TOKENS


def all_commands() -> Commands:
    """Return the commands of ``yurttunnel``."""
    return Commands(
        PROGRAM_NAME,
        {
            "Programs": PROGRAMS,
            "Inspect this machine or a cluster": (STATUS, *NODES),
            "Manage a server on this machine": (*TOKENS, REVOKE, *FORWARDS),
            "Debug a program on this machine": (LOGS_LEVEL, DIAGNOSE),
            "Check files": (CONFIG_CHECK,),
            "Shell and manual": shell_commands(all_commands),
        },
    )
