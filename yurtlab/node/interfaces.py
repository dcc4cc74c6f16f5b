"""The seam between what runs on the node and the ways in which clients stream to it.

Exec, attach and port-forward reach a kubelet by SPDY/3.1 or by WebSocket, in several versions of
each. What a process or a local connection has to do with that is these interfaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.interfaces import IPushProducer
from zope.interface import Interface

from yurttunnel.tunnel.interfaces import IStream


class ICommandClient(IPushProducer):
    """Whoever runs exec or attach, as seen by the process, whose input it produces.

    What it gives behind ``stopProducing`` is taken and dropped: the process has closed its input,
    and others wait behind.
    """

    def write(stream: str, data: bytes) -> None:
        """Send output, ``stream`` being "stdout" or "stderr"; dropped if it was not asked for."""

    def register_output(producer: IPushProducer) -> None:
        """Have the source of the output paused while the client does not keep up."""

    def finish(status: Mapping[str, Any]) -> None:
        """Send ``status``, a ``metav1.Status``, after all output, and close.

        Success is ``{"metadata": {}, "status": "Success"}``; an exit code other than 0 is a
        Failure with the reason ``NonZeroExitCode`` and the cause ``ExitCode``.
        """


class ICommandSession(Interface):
    """A process, as seen by a client of exec or attach."""

    def client_ready(client: ICommandClient) -> None:
        """All streams that the client asked for are there: begin."""

    def stdin_received(data: bytes) -> None:
        """Take input."""

    def stdin_ended() -> None:
        """The client has closed its input."""

    def resized(width: int, height: int) -> None:
        """The client's terminal has this size, in characters; told before ``client_ready``, too."""

    def client_lost() -> None:
        """The client has gone, before ``finish``."""


class IPortForwarder(Interface):
    """What connects the streams of a port-forward to the pod."""

    def connection_requested(port: int, connection: IForwardedConnection) -> None:
        """Connect ``connection`` to ``port`` of the pod, then ``accept`` or ``refuse`` it."""


class IForwardedConnection(Interface):
    """One connection of a port-forward, as seen by the node."""

    def accept() -> IStream:
        """Return the client's side, which is used as a stream of the tunnel."""

    def refuse(text: str) -> None:
        """Notify the client by the error stream why there is no connection, and end it."""
