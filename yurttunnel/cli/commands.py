"""All commands, by the words with which they are called."""

from __future__ import annotations

import difflib
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


class UnknownCommand(Exception):
    """There is no such command; a sentence says which was meant."""


def all_commands() -> dict[str, tuple[Command, ...]]:
    """Return the commands by what they are about."""
    return {
        "Programs": PROGRAMS,
        "What runs here, or in a cluster": (STATUS, *NODES),
        "What runs on this machine": (*TOKENS, REVOKE, *FORWARDS, LOGS_LEVEL, DIAGNOSE),
        "Files": (CONFIG_CHECK,),
        "This command": shell_commands(_every),
    }


def _every() -> Sequence[Command]:
    return [each for group in all_commands().values() for each in group]


def find(arguments: Sequence[str]) -> tuple[Command, Sequence[str]]:
    """Return the command that ``arguments`` begin with, and the others.

    Raises :class:`UnknownCommand`.
    """
    known = {each.name: each for each in _every()}
    for count in (2, 1):
        command = known.get(" ".join(arguments[:count]))
        if command is not None:
            return command, arguments[count:]
    raise UnknownCommand(_unknown(arguments, list(known)))


def _unknown(arguments: Sequence[str], known: Sequence[str]) -> str:
    first = arguments[0]
    further = [name.partition(" ")[2] for name in known if name.startswith(f"{first} ")]
    if further:
        return f"{first} is the beginning of a command: {first} {'|'.join(further)}"
    similar = difflib.get_close_matches(first, [name.split()[0] for name in known], 1)
    meant = f"did you mean {similar[0]}?" if similar else "yurttunnel --help lists those there are"
    return f"there is no command {first!r}: {meant}"
