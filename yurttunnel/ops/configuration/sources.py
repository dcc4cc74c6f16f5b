"""Who says what of a flag: the command line, else the environment, else the file.

Each of them says texts as the flag takes them, so that a value is parsed in one way wherever it
comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.command_line import did_you_mean
from yurttunnel.ops.flag_table import Entry, Flag, Repeated, Switch

_PREFIX = "YURTTUNNEL_"

_BETWEEN = re.compile(r"[;\n]")
"""Stands between several values in a variable; no value of a flag needs either."""

_OF_A_SERVICE = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_[0-9]+_(TCP|UDP|SCTP)(_|$)")

_MISTYPED = 0.85
"""How like another name a wrong one is; two letters of twelve may be missing or others."""

ON, OFF = "true", "false"
"""The texts of a switch."""


@dataclass(frozen=True, slots=True)
class Given:
    """What is said of one flag: its texts, several only where it is repeated.

    ``source`` is where, for messages: a flag, a variable, or a file and its key.
    """

    texts: tuple[str, ...]
    source: str


Source = Mapping[str, Given]
"""What one of them says, by the names of the flags."""


def variable_of(entry: Entry) -> str:
    """Return the variable that stands in for a flag."""
    return _PREFIX + entry.name.upper().replace("-", "_")


def environment(
    table: Sequence[Entry], variables: Mapping[str, str], of_each: bool = True
) -> Source:
    """Return what the environment says; a variable that is empty says nothing.

    Without ``of_each`` only those flags have a variable that name one. Raises ``UsageError`` for a
    switch that is neither on nor off.
    """
    found = {}
    for entry in table:
        for variable in _variables(entry, of_each):
            text = variables.get(variable)
            if text and entry.name not in found:
                source = f"${variable} (or --{entry.name})"
                found[entry.name] = Given(tuple(_texts(entry, source, text)), source)
    return found


def mistyped(table: Sequence[Entry], variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable that belongs to no flag, and a question with those it is much like.

    What is like none is another program's; what Kubernetes sets for a Service is nobody's mistake
    (kubernetes.io, Service, "Environment variables").
    """
    known = {name for entry in table for name in _variables(entry, of_each=True)}
    names = {name.removeprefix(_PREFIX) for name in known if name.startswith(_PREFIX)}
    for variable in sorted(variables.keys() - known):
        if variable.startswith(_PREFIX) and not _OF_A_SERVICE.search(variable):
            name = variable.removeprefix(_PREFIX)
            if meant := did_you_mean(name, names, f"${_PREFIX}", _MISTYPED):
                yield variable, meant


def _variables(entry: Entry, of_each: bool) -> Iterator[str]:
    if of_each:
        yield variable_of(entry)
    if isinstance(entry, Flag) and entry.variable:
        yield entry.variable


def _texts(entry: Entry, source: str, text: str) -> Iterable[str]:
    match entry:
        case Repeated():
            return [each.strip() for each in _BETWEEN.split(text) if each.strip()]
        case Switch():
            try:
                return [ON if flags.switch(text) else OFF]
            except ValueError as reason:
                raise usage.UsageError(f"{source}: {reason}") from None
    return [text]
