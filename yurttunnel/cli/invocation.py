"""Finds the command that the arguments of ``yurttunnel`` name, and runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from yurttunnel import __version__
from yurttunnel.cli.command_set import Commands, UnknownCommand
from yurttunnel.cli.commands import all_commands
from yurttunnel.cli.completion import for_kubectl
from yurttunnel.cli.options import Command
from yurttunnel.cli.plugin import PLUGIN_COMMANDS, alternative_to, is_plugin
from yurttunnel.cli.shell import tables
from yurttunnel.ops.command_line import STATUS, exit_on_broken_pipe

_HELP = ("-h", "--help", "help")

_ABOUT = (
    "A reverse tunnel: machines that cannot be dialed connect out, and are reached through that"
    " connection."
)

_ELSEWHERE = "\nRun the other commands of yurttunnel without kubectl: yurttunnel --help."


def run() -> None:
    """Run the command that the process's arguments name."""
    with exit_on_broken_pipe():
        _run(sys.argv[1:])


def _run(arguments: Sequence[str]) -> None:
    if len(arguments) > 1 and arguments[0] in _HELP:
        arguments = [*arguments[1:], "--help"]
    plugin = is_plugin(sys.argv[0])
    commands = PLUGIN_COMMANDS if plugin else all_commands()
    if not arguments or arguments[0] in _HELP:
        print(_help(commands, _ELSEWHERE if plugin else ""))
        raise SystemExit(0 if arguments else STATUS)
    if arguments[0] in ("--version", "version"):
        print(f"yurttunnel {__version__}")
        raise SystemExit(0)
    if plugin and (cure := alternative_to(arguments)):
        _refuse(commands, cure)
    if len(arguments) == 2 and arguments[1] in _HELP and (members := commands.family(arguments[0])):
        print(_help_of(commands, arguments[0], members))
        raise SystemExit(0)
    try:
        command, others = commands.find(arguments)
    except UnknownCommand as error:
        _refuse(commands, str(error))
    command.run(others)


def complete() -> None:
    """Print the completions for ``kubectl yurttunnel``, as kubectl requests them."""
    print(for_kubectl(tables(PLUGIN_COMMANDS.each()), sys.argv[1:]), end="")


def _refuse(commands: Commands, sentence: str) -> NoReturn:
    print(f"{commands.program}: {sentence}", file=sys.stderr)
    raise SystemExit(STATUS)


def _help(commands: Commands, note: str) -> str:
    groups = [f"{heading}:\n{_lines(each)}" for heading, each in commands.groups.items()]
    program = commands.program
    return "\n".join((_usage(program), f"{_ABOUT}\n", *groups, f"{_end(program)}{note}"))


def _help_of(commands: Commands, word: str, members: Sequence[Command]) -> str:
    """Return the help of the commands that share a first word."""
    beginning = f"{commands.program} {word}"
    return "\n".join((_usage(beginning), _lines(members), _end(beginning)))


def _usage(beginning: str) -> str:
    return f"Usage: {beginning} COMMAND [flags]\n"


def _end(beginning: str) -> str:
    return f"Run {beginning} COMMAND --help for the flags of a command."


def _lines(commands: Sequence[Command]) -> str:
    width = max(len(each.name) for each in commands)
    return "".join(f"  {each.name:<{width}}  {each.text}\n" for each in commands)
