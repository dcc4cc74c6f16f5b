"""Requests of the check, in its own process, for changes to the quickstart's parts.

It writes a line to :data:`DESCRIPTOR`, a name and its arguments, and reads a line from its standard
input when the request was handled: an empty one, or an error message.
"""

from __future__ import annotations

import os
import sys

DESCRIPTOR = 3
"""The file descriptor to which requests are written."""

STOP_API = "stop-api"
START_API = "start-api"
REBOOT_NODE = "reboot-node"
"""Its arguments are the namespace and the name of a pod to wait for."""


class RequestFailed(Exception):
    """A request failed; the message says which, and why."""


def send(*words: str) -> None:
    """Send a request, and wait until it is handled; raise :class:`RequestFailed`."""
    line = " ".join(words)
    os.write(DESCRIPTOR, line.encode() + b"\n")
    problem = sys.stdin.readline()
    if problem != "\n":
        raise RequestFailed(f"{line}: {problem.strip() or 'the quickstart has ended'}")
