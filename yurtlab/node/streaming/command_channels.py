"""The streams of exec and attach: over SPDY a client opens one for each, named by a header; in a
WebSocket each is a channel, and all exist at once.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from yurtlab.node.streaming.command_client import (
    Channel,
    CommandClient,
    CommandOptions,
    resizes,
)
from yurtlab.node.streaming.connection import CREATION_TIMEOUT
from yurtlab.node.streaming.spdy_connection import SPDYConnection, SPDYStream
from yurtlab.node.streaming.websocket import CLOSE_CHANNEL, ChannelConnection

_STREAM_TYPES: Final = {
    b"stdin": Channel.STDIN,
    b"stdout": Channel.STDOUT,
    b"stderr": Channel.STDERR,
    b"error": Channel.ERROR,
    b"resize": Channel.RESIZE,
}


class SPDYChannels:
    """The :class:`CommandChannels` of a SPDY connection, whose owner it is."""

    def __init__(
        self, clock: IReactorTime, protocol: str, options: CommandOptions, client: CommandClient
    ) -> None:
        self.connection = SPDYConnection(clock, self)
        self.sources = self.connection.sources
        self.budget = self.connection.budget
        self._client = client
        self._expected = _expected(protocol, options)
        self._streams: dict[Channel, SPDYStream] = {}
        self._deadline: IDelayedCall | None = clock.callLater(CREATION_TIMEOUT, self._too_late)
        client.connect(self)

    # -- StreamOwner ---------------------------------------------------------------------------

    def stream_opened(self, stream: SPDYStream) -> None:
        """Accept each stream that is expected once; begin when all are there."""
        channel = _STREAM_TYPES.get(stream.headers.get(b"streamtype", b""))
        if channel is None or channel not in self._expected or channel in self._streams:
            stream.refuse()
            return
        self._streams[channel] = stream
        client = self._client
        if channel is Channel.STDIN:
            # A reset is an end, too.
            stream.accept(client.stdin.receive, client.stdin.finish, client.stdin.finish)
        elif channel is Channel.RESIZE:
            stream.accept(client.resize_received)
        else:
            stream.accept()
        if len(self._streams) == len(self._expected):
            self._cancel_deadline()
            self._client.ready()

    def connection_lost(self, reason: Failure) -> None:
        """Notify the client's session."""
        self._cancel_deadline()
        self._client.lost()

    # -- CommandChannels -----------------------------------------------------------------------

    def send(self, channel: Channel, data: bytes) -> None:
        """Send output."""
        self._streams[channel].write(data)

    def finish(self, content: bytes) -> None:
        """Send the status, then end all streams."""
        if content:
            self._streams[Channel.ERROR].write(content)
        for stream in self._streams.values():
            stream.finish()
        self.connection.linger()

    # -- helpers -------------------------------------------------------------------------------

    def _too_late(self) -> None:
        self._deadline = None
        missing = sorted(channel.name.lower() for channel in self._expected - set(self._streams))
        self.connection.fail(f"the client did not open {', '.join(missing)} in time")

    def _cancel_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.cancel()


def _expected(protocol: str, options: CommandOptions) -> frozenset[Channel]:
    channels = {Channel.ERROR, *options.outputs}
    if options.stdin:
        channels.add(Channel.STDIN)
    if options.tty and resizes(protocol):
        channels.add(Channel.RESIZE)
    return frozenset(channels)


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
        super().connectionMade()
        self._beginning = self.clock.callLater(HEAD_START, self._begin)

    def end(self, reason: Failure) -> None:
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
        self._client.lost()

    def channel_received(self, channel: int, data: bytes) -> None:
        """Hand on what is for the session; other channels are ignored, as kubelet does."""
        if channel == Channel.STDIN:
            if self._takes_stdin:
                self._client.stdin.receive(data)
        elif channel == Channel.RESIZE:
            self._client.resize_received(data)
        elif channel == CLOSE_CHANNEL and self._closes_channels and Channel.STDIN in data:
            self._client.stdin.finish()

    # -- CommandChannels -----------------------------------------------------------------------

    def send(self, channel: Channel, data: bytes) -> None:
        """Send output."""
        self.send_channel(channel, data)

    def finish(self, content: bytes) -> None:
        """Send the status, then begin to close."""
        if content:
            self.send_channel(Channel.ERROR, content)
        self.begin_close()
