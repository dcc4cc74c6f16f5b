"""The protocols by which clients stream to a pod: SPDY/3.1 and WebSocket.

:func:`command_upgrade` serves exec and attach, :func:`forward_upgrade` serves port-forward. Both
take a clock, an exchange that has not been answered yet, and the other side of the seams in
:mod:`yurtlab.node.interfaces`.
"""

from yurtlab.node.streaming.command import command_upgrade
from yurtlab.node.streaming.command_client import CommandOptions
from yurtlab.node.streaming.forward import forward_upgrade

__all__ = ["CommandOptions", "command_upgrade", "forward_upgrade"]
