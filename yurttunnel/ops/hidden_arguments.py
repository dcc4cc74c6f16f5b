"""Hides a secret in the command line of this process, which every user of the machine can read."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_PROCESS = Path("/proc/self")

_ARG_START = 48 - 3
"""proc_pid_stat(5): arg_start is field 48; what follows the name begins with field 3."""

_MASKED = re.compile(rb"(sha256:)|[^.]")
"""The mask; ``0`` stands for the characters of a group, so tokens keep their form and still
parse."""


def hide_argument(secret: str) -> None:
    """Overwrite each argument that is ``secret``, or ends with ``=secret``.

    Until then it was visible. Where it cannot be overwritten, for example without ``/proc``, it
    stays: the help of the flag warns that others can see it.
    """
    hidden = secret.encode("utf-8", "surrogateescape")
    try:
        arguments = (_PROCESS / "cmdline").read_bytes().split(b"\0")
        place = _address_of_arguments((_PROCESS / "stat").read_text("ascii", "replace"))
    except (OSError, ValueError, IndexError):
        return
    if not (place and hidden):
        return  # The kernel hides the memory of a process that is not dumpable even from itself.
    for argument in arguments:
        end = place + len(argument)
        if argument == hidden or argument.endswith(b"=" + hidden):
            ctypes.memmove(end - len(hidden), masked(hidden), len(hidden))
        place = end + 1


def masked(secret: bytes) -> bytes:
    """Return the replacement for a secret."""
    return _MASKED.sub(lambda found: found[1] or b"0", secret)


def _address_of_arguments(stat: str) -> int:
    # The name of the program is in parentheses, and may itself have some.
    return int(stat.rpartition(")")[2].split()[_ARG_START])
