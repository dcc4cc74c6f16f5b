"""The streams of exec and attach in a WebSocket: each is a channel, and all exist at once."""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from yurtlab.node.streaming.command_client import (
    Channel,
    CommandClient,
    CommandOptions,
)
from yurtlab.node.streaming.websocket import CLOSE_CHANNEL, ChannelConnection

HEAD_START: Final = 0.1
"""Seconds that a client gets before its session begins. kubectl before 1.34 reads messages before
it has made the streams for them and drops those that come too soon (kubernetes/kubernetes issue
131189); with containers, which take longer to start a command, it is rarely seen."""


class WebSocketChannels(ChannelConnection):
    """The :class:`CommandChannels` of a WebSocket."""

    def __init__(
        self, clock: IReactorTime, protocol: str, options: CommandOptions, client: CommandClient
    ) -> None:
        super().__init__(clock)
        self._client = client
        self._takes_stdin = options.stdin
        self._closes_channels = protocol.startswith("v5.")
        self._first_output = min(options.outputs, default=Channel.ERROR)
        self._beginning: IDelayedCall | None = None
        client.connect(self)

    # -- IProtocol -----------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Begin soon."""
        super().connectionMade()
        self._beginning = self.clock.callLater(HEAD_START, self._begin)

    def end(self, reason: Failure) -> None:
        """Do not begin any more."""
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
        super().end(reason)

    def _begin(self) -> None:
        """Begin; an empty message tells the client so, as kubelet's does."""
        self._beginning = None
        if not self.closing:
            self.send_channel(self._first_output, b"")
            self._client.ready()

    def lost(self, reason: Failure) -> None:
        """Notify the client's session."""
        self._client.lost()

    def channel_received(self, channel: int, data: bytes) -> None:
        """Hand on what is for the session; other channels are ignored, as kubelet does."""
        if channel == Channel.STDIN:
            if self._takes_stdin:
                self._client.stdin_received(data)
        elif channel == Channel.RESIZE:
            self._client.resize_received(data)
        elif channel == CLOSE_CHANNEL and self._closes_channels and Channel.STDIN in data:
            self._client.stdin_ended()

    # -- CommandChannels -----------------------------------------------------------------------

    def send(self, channel: Channel, data: bytes) -> None:
        """Send output."""
        self.send_channel(channel, data)

    def finish(self, content: bytes) -> None:
        """Send the status, then begin to close."""
        if content:
            self.send_channel(Channel.ERROR, content)
        self.begin_close()
