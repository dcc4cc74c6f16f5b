"""Takes a secret off the command line of this process, where every user of the machine sees it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_PROCESS = Path("/proc/self")

_ARG_START = 48 - 3
"""proc_pid_stat(5): arg_start is field 48, and what stands behind the name begins with field 3."""

_COVERED = re.compile(rb"(sha256:)|[^.]")
"""What a ``0`` is written over, but for the group: tokens keep their form, and are still parsed."""


def hide_argument(secret: str) -> None:
    """Write something else over each argument that is ``secret``, or ends with ``=secret``.

    It was seen up to now. What cannot be done, as where there is no ``/proc``, is left undone: who
    gives a secret as an argument was told that others see it.
    """
    hidden = secret.encode("utf-8", "surrogateescape")
    try:
        arguments = (_PROCESS / "cmdline").read_bytes().split(b"\0")
        place = _address_of_arguments((_PROCESS / "stat").read_text("ascii", "replace"))
    except (OSError, ValueError, IndexError):
        return
    if not (place and hidden):
        return  # The kernel tells a process that may not be looked into nothing of its memory.
    for argument in arguments:
        end = place + len(argument)
        if argument == hidden or argument.endswith(b"=" + hidden):
            ctypes.memmove(end - len(hidden), covered(hidden), len(hidden))
        place = end + 1


def covered(secret: bytes) -> bytes:
    """Return what is written over a secret."""
    return _COVERED.sub(lambda found: found[1] or b"0", secret)


def _address_of_arguments(stat: str) -> int:
    # The name of the program stands in parentheses, and may have some itself.
    return int(stat.rpartition(")")[2].split()[_ARG_START])
