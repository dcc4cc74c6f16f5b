"""``yurttunnel``: finds the command that is meant and runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from yurttunnel import __version__
from yurttunnel.cli.commands import UnknownCommand, all_commands, family, find
from yurttunnel.cli.completion import for_kubectl
from yurttunnel.cli.options import IN_CLUSTER, Command
from yurttunnel.cli.plugin import ASKING, instead, is_plugin
from yurttunnel.cli.shell import tables
from yurttunnel.ops.command_line import STATUS, as_long_as_it_is_read

_HELP = ("-h", "--help", "help")

_ABOUT = (
    "A reverse tunnel: machines that nobody can dial connect out, and are reached through that."
)


def main() -> None:
    """Run the command that the arguments of the process name."""
    with as_long_as_it_is_read():
        _run(sys.argv[1:])


def _run(arguments: Sequence[str]) -> None:
    if len(arguments) > 1 and arguments[0] in _HELP:
        arguments = [*arguments[1:], "--help"]
    plugin = is_plugin(sys.argv[0])
    if not arguments or arguments[0] in _HELP:
        print(_help_of_plugin() if plugin else _help())
        raise SystemExit(0 if arguments else STATUS)
    if len(arguments) == 2 and arguments[1] in _HELP and (members := family(arguments[0])):
        print(_help_of(arguments[0], members))
        raise SystemExit(0)
    if arguments[0] in ("--version", "version"):
        print(f"yurttunnel {__version__}")
        raise SystemExit(0)
    try:
        command, others = find(arguments)
    except UnknownCommand as error:
        print(f"yurttunnel: {error}", file=sys.stderr)
        raise SystemExit(STATUS) from None
    if plugin:
        if cure := instead(command):
            print(f"kubectl yurttunnel: {cure}", file=sys.stderr)
            raise SystemExit(STATUS)
        others = [f"--{IN_CLUSTER.name}", *others]
    command.run(others)


def complete() -> None:
    """Print what kubectl offers behind ``kubectl yurttunnel``, as it asks for it."""
    print(for_kubectl(tables(ASKING), sys.argv[1:]), end="")


def _help() -> str:
    groups = [f"{group}:\n{_lines(each)}" for group, each in all_commands().items()]
    return "\n".join((_usage(""), f"{_ABOUT}\n", *groups, _end("")))


def _help_of_plugin() -> str:
    asking = f"What runs in a cluster:\n{_lines(ASKING)}"
    others = "The other commands of yurttunnel are run without kubectl: yurttunnel --help."
    plugin = "kubectl "
    return "\n".join((_usage("", plugin), asking, f"{_end('', plugin)}\n{others}"))


def _help_of(word: str, members: Sequence[Command]) -> str:
    """Return the help of the commands that begin with a word."""
    return "\n".join((_usage(f"{word} "), _lines(members), _end(f"{word} ")))


def _usage(beginning: str, before: str = "") -> str:
    return f"Usage: {before}yurttunnel {beginning}COMMAND [flags]\n"


def _end(beginning: str, before: str = "") -> str:
    return f"{before}yurttunnel {beginning}COMMAND --help tells of a command's flags."


def _lines(commands: Sequence[Command]) -> str:
    width = max(len(each.name) for each in commands)
    return "".join(f"  {each.name:<{width}}  {each.text}\n" for each in commands)
