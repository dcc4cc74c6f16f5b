"""The flags of ``--diagnose``, and all that the programs of a node or a cluster share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Entry, Flag, Group, Switch
from yurttunnel.ops.options import CONFIG, CommandOptions

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

COMMON_TABLE: tuple[Entry, ...] = (CONFIG, DIAGNOSE, OUTPUT)
"""The last flags of each of these programs."""


def bundle_path(options: CommandOptions[Any]) -> Path | None:
    """Return the value of --output; raise ``UsageError`` if it is given without --diagnose."""
    if options["output"] is not None and not options["diagnose"]:
        raise usage.UsageError("--output has no effect without --diagnose: add it")
    return options.optional_value(OUTPUT, None)
