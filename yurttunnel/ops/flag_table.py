"""Flags as one entry each, from which come the option, its value, the help and the reference."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Parsed = TypeVar("Parsed", covariant=True)


class Group(enum.Enum):
    """What a flag is about; help and reference show them in this order."""

    BASICS = "Basics"
    CLUSTER = "In a cluster"
    STEERING = "Steering"
    TRUST = "Trust"
    LIMITS = "Limits"
    OPERATION = "Operation"


@dataclass(frozen=True, slots=True)
class Flag(Generic[Parsed]):
    """A flag with a value.

    ``parse`` makes the value of a text, and raises ``ValueError`` with a reason in one line;
    ``default`` is such a text, ``None`` where there is none, or it depends on other flags.
    ``variable`` of the environment stands in for the flag, ``short`` is its letter. A flag that
    ``stands_alone`` may be given without a value, in the manner of Go, which is ``true``. The value
    of a ``secret`` one is taken off the command line of the process once it is read.
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


@dataclass(frozen=True, slots=True)
class Repeated(Generic[Parsed]):
    """A flag that may be given several times, with another value each time if ``once_each``."""

    name: str
    group: Group
    parse: Callable[[str], Parsed]
    text: str
    once_each: bool = False


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag without a value; ``short`` is its letter."""

    name: str
    group: Group
    text: str
    short: str | None = None


Entry = Flag[object] | Repeated[object] | Switch


def by_group(table: Sequence[Entry]) -> dict[Group, list[Entry]]:
    """Return the entries of each group that has any, in the order of the groups."""
    found = {group: [entry for entry in table if entry.group is group] for group in Group}
    return {group: entries for group, entries in found.items() if entries}


def shown(entry: Entry) -> str:
    """Return a flag as people write it."""
    match entry:
        case Repeated():
            return f"--{entry.name}="
        case Flag(stands_alone=True):
            return f"--{entry.name}[=true|false]"
    letter = "" if entry.short is None else f"-{entry.short}, "
    return f"{letter}--{entry.name}{'=' if isinstance(entry, Flag) else ''}"


def described(entry: Entry) -> str:
    """Return what a flag is for, with its default."""
    default = entry.default if isinstance(entry, Flag) else None
    return entry.text if default is None else f"{entry.text} [default: {default}]"
