"""What the check has done to the parts of the quickstart, from a process of its own.

It writes a line to :data:`DESCRIPTOR`, a name with words behind it, and reads one from its
standard input when that has been carried out: an empty one, or what went wrong.
"""

from __future__ import annotations

import os
import sys

DESCRIPTOR = 3
"""Where orders are written."""

STOP_API = "stop-api"
START_API = "start-api"
REBOOT_NODE = "reboot-node"
"""With the namespace and the name of a pod that is to run again."""


class NotDone(Exception):
    """An order was not carried out; the text says which, and why."""


def order(*words: str) -> None:
    """Have something done, and wait for it; raises :class:`NotDone`."""
    line = " ".join(words)
    os.write(DESCRIPTOR, line.encode() + b"\n")
    problem = sys.stdin.readline()
    if problem != "\n":
        raise NotDone(f"{line}: {problem.strip() or 'the quickstart has ended'}")
