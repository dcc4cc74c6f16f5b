"""Orders: changes to the quickstart's parts that the check requests from its own process.

It writes a line to :data:`DESCRIPTOR`, a name and its arguments, and reads a line from its standard
input when the order was carried out: an empty one, or an error message.
"""

from __future__ import annotations

import os
import sys

DESCRIPTOR = 3
"""The file descriptor to which orders are written."""

STOP_API = "stop-api"
START_API = "start-api"
REBOOT_NODE = "reboot-node"
"""Its arguments are the namespace and the name of a pod to wait for."""


class NotDone(Exception):
    """An order failed; the message says which, and why."""


def order(*words: str) -> None:
    """Send an order, and wait until it is carried out; raise :class:`NotDone`."""
    line = " ".join(words)
    os.write(DESCRIPTOR, line.encode() + b"\n")
    problem = sys.stdin.readline()
    if problem != "\n":
        raise NotDone(f"{line}: {problem.strip() or 'the quickstart has ended'}")
