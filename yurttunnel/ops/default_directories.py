"""The default state directories of programs without a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.ops.flag_table import Flag
from yurttunnel.ops.options import CommandOptions

SERVICE_DIRECTORIES = (Path("/var/lib/yurttunnel-server"), Path("/var/lib/yurttunnel-agent"))
"""The directories that systemd makes for the units in ``deploy/systemd`` (``StateDirectory=``)."""


def state_directory(
    options: CommandOptions[Any], flag: Flag[Path], program: str, environment: Mapping[str, str]
) -> Path:
    """Return the value of ``flag``, or the default directory; raise ``UsageError`` if none."""
    if options[flag.name] is not None:
        return options.value(flag)
    try:
        return default_state_directory(program, environment)
    except ValueError as error:
        raise usage.UsageError(f"--{flag.name} is missing: {error}") from None


def default_state_directory(program: str, environment: Mapping[str, str]) -> Path:
    """Return the default state directory of ``program``, ``server`` or ``agent``.

    For root it is that of the systemd unit, for other users one in the home directory, as the XDG
    Base Directory Specification says. Raises ``ValueError`` if there is no home directory.
    """
    if os.geteuid() == 0:
        return Path(f"/var/lib/yurttunnel-{program}/state")
    home = environment.get("XDG_STATE_HOME", "")
    if home.startswith("/"):
        return Path(home, "yurttunnel", program)
    home = environment.get("HOME", "")
    if not home.startswith("/"):
        raise ValueError("this user has no home directory to keep its state in")
    return Path(home, ".local", "state", "yurttunnel", program)
