"""All commands, by the words with which they are called."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Protocol

from yurttunnel.cli.logs import LOGS_LEVEL
from yurttunnel.cli.programs import PROGRAMS
from yurttunnel.cli.revoking import REVOKE
from yurttunnel.cli.status import STATUS
from yurttunnel.cli.tokens import TOKENS
from yurttunnel.ops.options import CommandOptions


class Command(Protocol):
    """``yurttunnel NAME``; ``text`` says in a line what it does."""

    @property
    def name(self) -> str:
        """One or two words."""

    @property
    def text(self) -> str:
        """What it does, in a line."""

    def options(self) -> CommandOptions[Any]:
        """Make its options."""

    def run(self, arguments: Sequence[str]) -> None:
        """Run it with what stands behind its name; how it ends is told by ``SystemExit``."""


class UnknownCommand(Exception):
    """There is no such command; a sentence says which was meant."""


def all_commands() -> dict[str, tuple[Command, ...]]:
    """Return the commands by what they are about."""
    return {
        "Programs": PROGRAMS,
        "What runs on this machine": (STATUS, *TOKENS, REVOKE, LOGS_LEVEL),
    }


def find(arguments: Sequence[str]) -> tuple[Command, Sequence[str]]:
    """Return the command that ``arguments`` begin with, and the others.

    Raises :class:`UnknownCommand`.
    """
    known = {each.name: each for group in all_commands().values() for each in group}
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
