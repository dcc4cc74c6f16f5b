"""All commands, by the words with which they are called."""

from __future__ import annotations

from collections.abc import Sequence

from yurttunnel.cli.config import CONFIG_CHECK
from yurttunnel.cli.diagnosing import DIAGNOSE
from yurttunnel.cli.forwards import FORWARDS
from yurttunnel.cli.logs import LOGS_LEVEL
from yurttunnel.cli.nodes import NODES
from yurttunnel.cli.options import Command
from yurttunnel.cli.programs import PROGRAMS
from yurttunnel.cli.revoking import REVOKE
from yurttunnel.cli.shell import shell_commands
from yurttunnel.cli.status import STATUS
from yurttunnel.cli.tokens import TOKENS
from yurttunnel.ops.command_line import did_you_mean


class UnknownCommand(Exception):
    """There is no such command; a sentence says which was meant."""


def all_commands() -> dict[str, tuple[Command, ...]]:
    """Return the commands by what they are about."""
    return {
        "Programs": PROGRAMS,
        "What runs here, or in a cluster": (STATUS, *NODES),
        "What runs on this machine": (*TOKENS, REVOKE, *FORWARDS, LOGS_LEVEL, DIAGNOSE),
        "Files": (CONFIG_CHECK,),
        "This command": shell_commands(every_command),
    }


def every_command() -> Sequence[Command]:
    """Return all commands, each by itself."""
    return [each for group in all_commands().values() for each in group]


def family(word: str) -> Sequence[Command]:
    """Return the commands of two words that begin with ``word``."""
    return [each for each in every_command() if each.name.startswith(f"{word} ")]


def find(arguments: Sequence[str]) -> tuple[Command, Sequence[str]]:
    """Return the command that ``arguments`` begin with, and the others.

    Raises :class:`UnknownCommand`.
    """
    known = {each.name: each for each in every_command()}
    for count in (2, 1):
        command = known.get(" ".join(arguments[:count]))
        if command is not None:
            return command, arguments[count:]
    raise UnknownCommand(_unknown(*arguments[:2]))


def _unknown(first: str, second: str = "") -> str:
    if first.startswith("-"):
        return f"{first} stands before the command: flags stand behind it, COMMAND {first}"
    further = [each.name.partition(" ")[2] for each in family(first)]
    if further:
        meant = did_you_mean(second, further, f"{first} ")
        if meant:
            return f"there is no command '{first} {second}': {meant}"
        return f"{first} is the beginning of a command: {first} {'|'.join(further)}"
    meant = did_you_mean(first, {each.name.split()[0] for each in every_command()})
    return f"there is no command {first!r}: {meant or 'yurttunnel --help lists those there are'}"
