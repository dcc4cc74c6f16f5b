"""The interfaces between what runs on the node and the streaming protocols of clients.

Exec, attach and port-forward reach a kubelet by SPDY/3.1 or by WebSocket, in several versions of
each. Processes and local connections only depend on these interfaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.interfaces import IPushProducer
from zope.interface import Interface

from yurttunnel.tunnel.interfaces import IStream


class ICommandClient(IPushProducer):
    """The client of exec or attach, as the process sees it, whose input it produces.

    Input after ``stopProducing`` is read and dropped: the process has closed its input, and other
    streams must not wait behind it.
    """

    def write(stream: str, data: bytes) -> None:
        """Send output on ``stream``, "stdout" or "stderr"; drop it if it was not requested."""

    def register_output(producer: IPushProducer) -> None:
        """Register the source of the output, which is paused while the client does not keep up."""

    def finish(status: Mapping[str, Any]) -> None:
        """Send ``status``, a ``metav1.Status``, after all output, and close.

        Success is ``{"metadata": {}, "status": "Success"}``; an exit code other than 0 is a
        Failure with the reason ``NonZeroExitCode`` and the cause ``ExitCode``.
        """


class ICommandSession(Interface):
    """A process, as seen by a client of exec or attach."""

    def client_ready(client: ICommandClient) -> None:
        """Start: all streams that the client requested are open."""

    def stdin_received(data: bytes) -> None:
        """Receive input."""

    def stdin_ended() -> None:
        """Handle that the client has closed its input."""

    def resized(width: int, height: int) -> None:
        """Set the size of the client's terminal, in characters; also before ``client_ready``."""

    def client_lost() -> None:
        """Handle that the client has disconnected, before ``finish``."""


class IPortForwarder(Interface):
    """What connects the streams of a port-forward to the pod."""

    def connection_requested(port: int, connection: IForwardedConnection) -> None:
        """Connect ``connection`` to ``port`` of the pod, then ``accept`` or ``refuse`` it."""


class IForwardedConnection(Interface):
    """One connection of a port-forward, as seen by the node."""

    def accept() -> IStream:
        """Return the client's side, which is used as a stream of the tunnel."""

    def refuse(text: str) -> None:
        """Send the error on the client's error stream, and end the connection."""
