"""The help of a command: its purpose, examples, and its flags in groups."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from yurttunnel.ops.flag_table import Entry, Group, by_group, syntax, with_default

SHORT_HELP_GROUPS = (Group.BASICS, Group.CLUSTER)
"""The groups that ``--help`` shows; ``--help-all`` shows all."""

_MIN_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Example:
    """An example of ``arguments``, with a description that continues the command line."""

    purpose: str
    arguments: str = ""

    def command(self, invocation: str) -> str:
        """Return the line to type; ``invocation`` is the name by which the command is called."""
        return f"{invocation} {self.arguments}".rstrip()


class Help(NamedTuple):
    """The help of a command that is called as ``invocation``.

    ``note`` appears only in the whole help; ``words`` are the positional arguments.
    """

    invocation: str
    description: str
    examples: Sequence[Example]
    table: Sequence[Entry]
    note: str = ""
    words: Sequence[str] = ()

    def short(self, width: int | None = None) -> str:
        """Return the help that most users need, and the number of further flags."""
        groups = by_group(self.table)
        rest = {
            group: entries for group, entries in groups.items() if group not in SHORT_HELP_GROUPS
        }
        return self._text(
            [group for group in groups if group in SHORT_HELP_GROUPS], _others(rest), width
        )

    def full(self, width: int | None = None) -> str:
        """Return the whole help."""
        return self._text(list(by_group(self.table)), "", width, self.note)

    def _text(self, groups: Sequence[Group], others: str, width: int | None, note: str = "") -> str:
        wide = max(width or shutil.get_terminal_size().columns, _MIN_WIDTH)
        usage = " ".join(("Usage:", self.invocation, *self.words, "[options]"))
        parts = [usage, _filled(self.description, wide)]
        if self.examples:
            parts.append(
                "Examples:\n" + "\n".join(self._example(each, wide) for each in self.examples)
            )
        entries = by_group(self.table)
        for group in groups:
            flags = "\n".join(_flag_help(each, wide) for each in entries[group])
            parts.append(f"{group.value}:\n{flags}")
        more = f"      --help-all\n{_filled(others, wide, ' ' * 10)}\n" if others else ""
        parts.append(f"Of every command:\n      --version\n      -h, --help\n{more}".rstrip())
        if note:
            parts.append(_filled(note, wide))
        return "\n\n".join(parts) + "\n"

    def _example(self, example: Example, width: int) -> str:
        # The command is not wrapped, so that it can be copied.
        purpose = _filled(f"{example.purpose}:", width, "  ")
        return f"{purpose}\n      {example.command(self.invocation)}"


def _others(groups: dict[Group, list[Entry]]) -> str:
    count = sum(map(len, groups.values()))
    names = ", ".join(group.value.lower() for group in groups)
    return f"The same with {count} flags more: {names}." if count else ""


def _flag_help(entry: Entry, width: int) -> str:
    return f"      {syntax(entry)}\n{_filled(with_default(entry), width, ' ' * 10)}"


def _filled(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
