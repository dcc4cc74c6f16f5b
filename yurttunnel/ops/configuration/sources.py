"""The sources of flags: the command line, then the environment, then the file.

Each source has the texts that the flag accepts, so a value is parsed in the same way wherever it
comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.command_line import did_you_mean
from yurttunnel.ops.flag_table import Entry, Flag, Repeated, Switch

_PREFIX = "YURTTUNNEL_"

_SEPARATOR = re.compile(r"[;\n]")
"""The separators of several values in a variable; no value of a flag contains either."""

_SERVICE_VARIABLE = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_[0-9]+_(TCP|UDP|SCTP)(_|$)"
)

_MIN_SIMILARITY = 0.85
"""The minimum likeness of a misspelled name: two letters of twelve may be missing or wrong."""

ON, OFF = "true", "false"
"""The texts of a switch."""


class FlagValue(NamedTuple):
    """The texts that a source has for one flag; several only for a repeated flag.

    ``source`` is the origin, for messages: a flag, a variable, or a file and its key.
    """

    texts: tuple[str, ...]
    source: str


Source = Mapping[str, FlagValue]
"""The values in a source, by the names of the flags."""


def variable_of(entry: Entry) -> str:
    """Return the environment variable for a flag."""
    return _PREFIX + entry.name.upper().replace("-", "_")


def environment(
    table: Sequence[Entry], variables: Mapping[str, str], for_each_flag: bool = True
) -> Source:
    """Return the values from the environment; an empty variable, or list, counts as unset.

    Without ``for_each_flag`` only flags that name a variable have one. Raises ``UsageError`` for a
    switch with an invalid value.
    """
    found = {}
    for entry in table:
        for variable in _variables(entry, for_each_flag):
            text = variables.get(variable)
            if text and entry.name not in found:
                source = f"${variable} (or --{entry.name})"
                if texts := tuple(_texts(entry, source, text)):
                    found[entry.name] = FlagValue(texts, source)
    return found


def misspelled_variables(
    table: Sequence[Entry], variables: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each variable that is like that of a flag but matches none, and a suggestion.

    A variable that is like none belongs to another program; those that Kubernetes sets for a
    Service are no mistakes either (kubernetes.io, Service, "Environment variables").
    """
    known = {name for entry in table for name in _variables(entry, for_each_flag=True)}
    names = {name.removeprefix(_PREFIX) for name in known if name.startswith(_PREFIX)}
    for variable in sorted(variables.keys() - known):
        if variable.startswith(_PREFIX) and not _SERVICE_VARIABLE.search(variable):
            name = variable.removeprefix(_PREFIX)
            if meant := did_you_mean(name, names, f"${_PREFIX}", _MIN_SIMILARITY):
                yield variable, meant


def _variables(entry: Entry, for_each_flag: bool) -> Iterator[str]:
    if for_each_flag:
        yield variable_of(entry)
    if isinstance(entry, Flag) and entry.variable:
        yield entry.variable


def _texts(entry: Entry, source: str, text: str) -> Iterable[str]:
    match entry:
        case Repeated():
            return [each.strip() for each in _SEPARATOR.split(text) if each.strip()]
        case Switch():
            try:
                return [ON if flags.switch(text) else OFF]
            except ValueError as reason:
                raise usage.UsageError(f"{source}: {reason}") from None
    return [text]
