"""The streams of exec and attach: over SPDY the client opens each, named by a header; in a
WebSocket each is a channel, and all exist at once.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from yurtlab.node.interfaces import ICommandSession
from yurtlab.node.streaming.command_client import Channel, CommandClient, CommandOptions, resizes
from yurtlab.node.streaming.connection import CREATION_TIMEOUT
from yurtlab.node.streaming.spdy_connection import SPDYConnection, SPDYStream
from yurtlab.node.streaming.websocket import CLOSE_CHANNEL, ChannelConnection, ChannelStream
from yurtlab.timers import cancel

_STREAM_TYPES: Final = {
    b"stdin": Channel.STDIN,
    b"stdout": Channel.STDOUT,
    b"stderr": Channel.STDERR,
    b"error": Channel.ERROR,
    b"resize": Channel.RESIZE,
}


class SPDYCommand(SPDYConnection):
    """The protocol of a SPDY connection that carries exec or attach."""

    def __init__(
        self, clock: IReactorTime, protocol: str, options: CommandOptions, session: ICommandSession
    ) -> None:
        super().__init__(clock)
        self._client = CommandClient(self, protocol, options, session)
        self._missing = options.channels
        if options.tty and resizes(protocol):
            self._missing.add(Channel.RESIZE)
        self._creation = clock.callLater(CREATION_TIMEOUT, self._too_late)

    def stream_opened(self, stream: SPDYStream) -> None:
        """Accept each expected stream once; start when all are open."""
        channel = _STREAM_TYPES.get(stream.headers.get(b"streamtype", b""))
        if channel not in self._missing:
            self.refuse(stream)
            return
        self._missing.remove(channel)
        self.accept(stream)
        self._client.add(channel, stream)
        if not self._missing:
            cancel(self._creation)
            self._client.ready()

    def lost(self, reason: Failure) -> None:
        cancel(self._creation)
        self._client.lost()

    def _too_late(self) -> None:
        missing = sorted(channel.name.lower() for channel in self._missing)
        self.fail(f"the client did not open {', '.join(missing)} in time")


OUTPUT_DELAY: Final = 0.1
"""The delay in seconds before the session begins. kubectl before 1.34 reads messages before it has
made the streams for them, and drops those that arrive too soon (kubernetes/kubernetes issue
131189); with containers, which take longer to start a command, it is rarely seen."""


class WebSocketCommand(ChannelConnection):
    """The protocol of a WebSocket that carries exec or attach."""

    def __init__(
        self, clock: IReactorTime, protocol: str, options: CommandOptions, session: ICommandSession
    ) -> None:
        super().__init__(clock)
        self._client = CommandClient(self, protocol, options, session)
        for channel in (*options.channels, Channel.RESIZE):
            self._client.add(channel, ChannelStream(self, channel))
        self._closes_channels = protocol.startswith("v5.")
        self._first_output = min(options.outputs, default=Channel.ERROR)
        self._beginning: IDelayedCall | None = None

    # -- IProtocol -----------------------------------------------------------------------------

    def connectionMade(self) -> None:
        super().connectionMade()
        self._beginning = self.clock.callLater(OUTPUT_DELAY, self._begin)

    def end(self, reason: Failure) -> None:
        cancel(self._beginning)
        super().end(reason)

    def _begin(self) -> None:
        """Start, and send an empty message as the kubelet does."""
        if not self.closing:
            self.channels[self._first_output].write(b"")
            self._client.ready()

    def lost(self, reason: Failure) -> None:
        self._client.lost()

    def channel_received(self, channel: int, data: bytes) -> None:
        """Deliver the data of a stream, or handle that the client has ended one."""
        if channel == CLOSE_CHANNEL and self._closes_channels:
            if Channel.STDIN in data:
                self._client.stdin.finish()
        else:
            super().channel_received(channel, data)
