"""The protocols by which clients stream to a pod: SPDY/3.1 and WebSocket.

:func:`command_upgrade` serves exec and attach, :func:`forward_upgrade` serves port-forward. Both
take a clock, an exchange that has not been answered yet, and the other side of the seams in
:mod:`yurttunnel.quickstart.node.interfaces`.
"""

from yurttunnel.quickstart.node.streaming.command import command_upgrade
from yurttunnel.quickstart.node.streaming.command_client import CommandOptions
from yurttunnel.quickstart.node.streaming.forward import forward_upgrade

__all__ = ["CommandOptions", "command_upgrade", "forward_upgrade"]
