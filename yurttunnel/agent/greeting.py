"""The message of an agent without a cluster on a terminal once it is connected: how to reach it."""

from __future__ import annotations

from functools import partial
from typing import TextIO

from twisted.internet.interfaces import IReactorTime

from yurttunnel.agent.settings import Settings
from yurttunnel.http.authority import join_authority
from yurttunnel.ops.announcement import Announcement
from yurttunnel.ops.readiness import Readiness


def greeting(
    clock: IReactorTime, readiness: Readiness, settings: Settings, terminal: TextIO | None
) -> Announcement | None:
    """Return the announcement of the message on ``terminal``, if there is one.

    If only the destinations in ``--allow-destination`` are allowed, the user knows how to reach
    them.
    """
    if terminal is None or not settings.keep_default_destinations:
        return None
    return Announcement(clock, readiness, partial(print_greeting, settings, terminal))


def print_greeting(settings: Settings, terminal: TextIO) -> None:
    """Print the command with which the server reaches a port of this machine."""
    node = settings.node_name
    target = join_authority(str(settings.node_ip), 80)
    loopback = "127.0.0.1" if settings.node_ip.version == 4 else "[::1]"
    print(
        f"""
This machine is now node {node} of the server. There, this command forwards port 9000 to port 80
here:

  yurttunnel forward add 9000={node}/{target}

On loopback only the kubelet's ports can be reached; for others start this agent with
--allow-destination {loopback}:PORT.
""",
        file=terminal,
        flush=True,
    )
