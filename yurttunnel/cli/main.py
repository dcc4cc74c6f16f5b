"""``yurttunnel``: finds the command that is meant and runs it."""

from __future__ import annotations

import os
import sys

from yurttunnel import __version__
from yurttunnel.cli.commands import UnknownCommand, all_commands, find
from yurttunnel.cli.options import IN_CLUSTER
from yurttunnel.ops.command_line import STATUS

_BEGINNING = """Usage: yurttunnel COMMAND [flags]

A reverse tunnel: machines that nobody can dial connect out, and are reached through that.
"""

_END = "yurttunnel COMMAND --help tells of a command's flags."


def main() -> None:
    """Run the command that the arguments of the process name."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        raise SystemExit(0 if arguments else STATUS)
    if arguments[0] in ("--version", "version"):
        print(f"yurttunnel {__version__}")
        raise SystemExit(0)
    try:
        command, others = find(arguments)
    except UnknownCommand as error:
        print(f"yurttunnel: {error}", file=sys.stderr)
        raise SystemExit(STATUS) from None
    if _is_plugin(sys.argv[0]) and IN_CLUSTER in command.options().table:
        others = [f"--{IN_CLUSTER.name}", *others]
    command.run(others)


def _is_plugin(path: str) -> bool:
    """Return whether it is kubectl that runs this, which finds its plugins by their names."""
    return os.path.basename(path).startswith("kubectl-")


def _help() -> str:
    parts = [_BEGINNING]
    for group, commands in all_commands().items():
        width = max(len(each.name) for each in commands)
        lines = "".join(f"  {each.name:<{width}}  {each.text}\n" for each in commands)
        parts.append(f"{group}:\n{lines}")
    return "\n".join((*parts, _END))
