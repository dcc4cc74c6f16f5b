"""``yurttunnel config check``: what a program would say of a file, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.ops.configuration.file import OWN_KEY, BadConfiguration, named, parse_file
from yurttunnel.ops.options import CommandOptions, FlagMissing

Programs = Mapping[str, type[CommandOptions[Any]]]
"""Those that have the flag ``--config``, by their names."""


def check_file(options: type[CommandOptions[Any]], path: Path) -> str | None:
    """Return what a program needs beside the file, which may stand on its command line.

    ``None`` when the file is enough. Raises ``UsageError`` that says what is wrong. Variables of
    the environment count as at a start.
    """
    checked = options()
    checked.check_values(checked.read_file(path))
    try:
        checked.parseOptions([f"--{OWN_KEY}={path}"])
    except FlagMissing as error:
        return str(error)
    except usage.UsageError as error:
        raise BadConfiguration(named(path, error)) from None
    return None


def program_of(programs: Programs, path: Path) -> str:
    """Return which of ``programs`` a file is for: the first that knows the most of its keys.

    Raises ``UsageError`` for a file that cannot be read.
    """
    keys = parse_file(path).keys()
    return max(
        programs, key=lambda name: len(keys & {entry.name for entry in programs[name].table})
    )
