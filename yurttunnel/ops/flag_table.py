"""The table of flags, from which options, values, the help and the reference are made."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

Parsed = TypeVar("Parsed", covariant=True)


class Group(enum.Enum):
    """The subject of a flag; the help and the reference show the groups in this order."""

    BASICS = "Basics"
    CLUSTER = "In a cluster"
    STEERING = "Steering"
    TRUST = "Trust"
    LIMITS = "Limits"
    OPERATION = "Operation"


class Flag(NamedTuple, Generic[Parsed]):
    """A flag with a value.

    ``parse`` parses the text of a value, and raises ``ValueError`` with a reason in one line.
    ``default`` is such a text, or ``None`` if there is no default, or if it depends on other flags.
    ``variable`` is the environment variable for the flag, ``short`` its letter. A flag that
    ``stands_alone`` may be given without a value, which means ``true``, as in Go. The value of a
    ``secret`` flag is hidden from the command line of the process once it is read.
    """

    name: str
    group: Group
    parse: Callable[[str], Parsed]
    text: str
    default: str | None = None
    variable: str = ""
    short: str | None = None
    stands_alone: bool = False
    secret: bool = False


class Repeated(NamedTuple, Generic[Parsed]):
    """A flag that may be repeated; with ``once_each`` its values must differ."""

    name: str
    group: Group
    parse: Callable[[str], Parsed]
    text: str
    once_each: bool = False


class Switch(NamedTuple):
    """A flag without a value; ``short`` is its letter."""

    name: str
    group: Group
    text: str
    short: str | None = None


Entry = Flag[object] | Repeated[object] | Switch


def flags_in(module: Mapping[str, object]) -> tuple[Entry, ...]:
    """Return the flags that a module, given by its ``globals()``, has declared so far, in order.

    Flags of other modules are imported with their module, or they would be among them.
    """
    return tuple(each for each in module.values() if isinstance(each, Flag | Repeated | Switch))


def by_group(table: Sequence[Entry]) -> dict[Group, list[Entry]]:
    """Return the entries by group, in the order of the groups; groups without any are omitted."""
    found = {group: [entry for entry in table if entry.group is group] for group in Group}
    return {group: entries for group, entries in found.items() if entries}


def syntax(entry: Entry) -> str:
    """Return a flag as users type it."""
    match entry:
        case Repeated():
            return f"--{entry.name}="
        case Flag(stands_alone=True):
            return f"--{entry.name}[=true|false]"
    letter = "" if entry.short is None else f"-{entry.short}, "
    return f"{letter}--{entry.name}{'=' if isinstance(entry, Flag) else ''}"


def spellings(entry: Entry) -> list[str]:
    """Return a flag, and its letter if it has one, as users type them."""
    short = None if isinstance(entry, Repeated) else entry.short
    return [f"--{entry.name}", *([f"-{short}"] if short else [])]


def with_default(entry: Entry) -> str:
    """Return the description of a flag, with its default."""
    default = entry.default if isinstance(entry, Flag) else None
    return entry.text if default is None else f"{entry.text} [default: {default}]"
