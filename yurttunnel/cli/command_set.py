"""A set of commands, found by their words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from yurttunnel.cli.options import Command
from yurttunnel.ops.command_line import did_you_mean


class UnknownCommand(Exception):
    """The command does not exist; the message has a suggestion."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of ``program``, by subject."""

    program: str
    groups: Mapping[str, Sequence[Command]]

    def each(self) -> list[Command]:
        """Return all commands."""
        return [command for group in self.groups.values() for command in group]

    def family(self, word: str) -> list[Command]:
        """Return the two-word commands whose first word is ``word``."""
        return [command for command in self.each() if command.name.startswith(f"{word} ")]

    def find(self, arguments: Sequence[str]) -> tuple[Command, Sequence[str]]:
        """Return the command that ``arguments`` begin with, and the remaining arguments.

        Raises :class:`UnknownCommand`.
        """
        known = {command.name: command for command in self.each()}
        for count in (2, 1):
            command = known.get(" ".join(arguments[:count]))
            if command is not None:
                return command, arguments[count:]
        raise UnknownCommand(self._unknown(*arguments[:2]))

    def _unknown(self, first: str, second: str = "") -> str:
        if first.startswith("-"):
            return f"{first} is before the command: flags come after it, COMMAND {first}"
        further = [command.name.partition(" ")[2] for command in self.family(first)]
        if further:
            suggestion = did_you_mean(second, further, f"{first} ")
            if suggestion:
                return f"there is no command '{first} {second}': {suggestion}"
            return f"{first} is the beginning of a command: {first} {'|'.join(further)}"
        suggestion = did_you_mean(first, {command.name.split()[0] for command in self.each()})
        cure = suggestion or f"{self.program} --help lists the commands"
        return f"there is no command {first!r}: {cure}"
