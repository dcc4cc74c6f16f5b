"""The flags of ``--diagnose``, which all programs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Entry, Flag, Group, Switch
from yurttunnel.ops.options import CommandOptions

DIAGNOSE = Switch(
    "diagnose",
    Group.OPERATION,
    "Collect diagnostic data of the process with these flags, running or not, into a .tar.gz"
    " without keys and tokens, list what looks wrong, and exit with status 0 if nothing does.",
)

OUTPUT = Flag(
    "output",
    Group.OPERATION,
    flags.path,
    "With --diagnose: file to write. [default: a name with the time, in the working directory]",
)

DIAGNOSE_TABLE: tuple[Entry, ...] = (DIAGNOSE, OUTPUT)


def bundle_path(options: CommandOptions[Any]) -> Path | None:
    """Return the value of --output; raise ``UsageError`` if it is given without --diagnose."""
    if options["output"] is not None and not options["diagnose"]:
        raise usage.UsageError("--output has no effect without --diagnose: add it")
    return options.optional_value(OUTPUT, None)
