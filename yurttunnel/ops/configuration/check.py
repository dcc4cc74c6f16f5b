"""``yurttunnel config check``: validates a file as a program would, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.ops.configuration.file import OWN_KEY, BadConfiguration, parse_file, with_path
from yurttunnel.ops.options import CommandOptions, FlagMissing

Programs = Mapping[str, type[CommandOptions[Any]]]
"""The options of the programs that have ``--config``, by name."""


def check_file(options: type[CommandOptions[Any]], path: Path) -> str | None:
    """Validate a file, and return what the program needs besides it on its command line.

    Returns ``None`` if the file is complete. Raises ``UsageError`` if it is invalid. Environment
    variables apply as when the program starts.
    """
    checked = options()
    checked.check_values(checked.read_file(path))
    try:
        checked.parseOptions([f"--{OWN_KEY}={path}"])
    except FlagMissing as error:
        return str(error)
    except usage.UsageError as error:
        raise BadConfiguration(with_path(path, error)) from None
    return None


def program_of(programs: Programs, path: Path) -> str:
    """Return which of ``programs`` a file is for: the first of those that know most of its keys.

    Raises ``UsageError`` if the file cannot be read.
    """
    keys = parse_file(path).keys()
    return max(
        programs, key=lambda name: len(keys & {entry.name for entry in programs[name].table})
    )
