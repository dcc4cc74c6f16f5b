"""WebSocket connections (RFC 6455) on the side that serves, and the channels of Kubernetes in them.

The frames are wsproto's. Messages are passed on in the pieces in which they come, so that neither
they nor their frames need a bound.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from yurtlab.node.streaming.connection import Stream, StreamingConnection

_CLEAN: Final = (
    CloseReason.NORMAL_CLOSURE,
    CloseReason.GOING_AWAY,
    CloseReason.NO_STATUS_RCVD,
)

HEARTBEAT: Final = 15.0
"""Seconds between the pongs that a client gets while its input is paused: then its pings are not
read, and kubectl gives up after 61 seconds without a pong. RFC 6455 section 5.5.3 allows them. A
kubectl that cannot write for 60 seconds gives up all the same."""

CLOSE_CHANNEL: Final = 255
"""On this channel of v5.channel.k8s.io comes the number of a channel that has ended (KEP-4006)."""


class WebSocketConnection(StreamingConnection):
    """The protocol on a transport that has been switched to WebSocket.

    Subclasses implement :meth:`payload_received` and ``lost``.
    """

    def __init__(self, clock: IReactorTime) -> None:
        super().__init__(clock)
        self._websocket = Connection(ConnectionType.SERVER)
        self._heartbeat = LoopingCall(self._beat)
        self._heartbeat.clock = clock

    # -- IProtocol -----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Take the frames, or pieces of them, that are in ``data``."""
        self.heard()
        if self.closing:
            return
        self._websocket.receive_data(data)
        for event in self._websocket.events():
            self._received(event)
            if self.closing:
                return

    def end(self, reason: Failure) -> None:
        self._stop_heartbeat()
        super().end(reason)

    # -- for subclasses ------------------------------------------------------------------------

    def payload_received(self, data: bytes, finished: bool) -> None:
        """Take the next piece of a message; ``finished`` is true with the last. For subclasses."""
        raise NotImplementedError

    def client_closed(self) -> None:
        """The client has closed cleanly; it may have sent all that it wanted. For subclasses."""

    def send_message(self, data: bytes) -> None:
        """Send one message."""
        if not self.closing and self._websocket.state is ConnectionState.OPEN:
            self.transport.write(self._websocket.send(BytesMessage(data=data)))

    def begin_close(self) -> None:
        """Send no more: begin to close as RFC 6455 section 7 has it, and wait for the client."""
        if not self.closing and self._websocket.state is ConnectionState.OPEN:
            closed = CloseConnection(code=CloseReason.NORMAL_CLOSURE)
            self.transport.write(self._websocket.send(closed))
            self._stop_heartbeat()
            self.linger()

    def pause_input(self) -> None:
        """Read no more for now, and keep the client from giving up."""
        super().pause_input()
        if not self._heartbeat.running and not self.closing:
            _ = self._heartbeat.start(HEARTBEAT, now=False)

    def resume_input(self) -> None:
        self._stop_heartbeat()
        super().resume_input()

    # -- helpers -------------------------------------------------------------------------------

    def _received(self, event: Event) -> None:
        match event:
            case BytesMessage():
                self.payload_received(bytes(event.data), event.message_finished)
            case TextMessage():
                # The Python client sends text as such; it means the bytes.
                self.payload_received(event.data.encode(), event.message_finished)
            case Ping():
                if self._websocket.state is ConnectionState.OPEN:
                    self.answer(self._websocket.send(event.response()))
            case CloseConnection():
                self._close_received(event)

    def _close_received(self, event: CloseConnection) -> None:
        """Close, after the answer if one is due.

        A client that breaks the protocol is such an event, too, with the code to tell it.
        """
        state = self._websocket.state
        if state is not ConnectionState.OPEN and event.code in _CLEAN:
            self.client_closed()
        if state is ConnectionState.REMOTE_CLOSING:
            self.transport.write(self._websocket.send(event.response()))
        if state is ConnectionState.OPEN:
            self.log.warn("WebSocket given up: {reason}", reason=event.reason)
            self.transport.write(self._websocket.send(event))
        self._stop_heartbeat()
        self.close()

    def _beat(self) -> None:
        if self._websocket.state is ConnectionState.OPEN:
            self.answer(self._websocket.send(Pong()))

    def _stop_heartbeat(self) -> None:
        if self._heartbeat.running:
            self._heartbeat.stop()


class ChannelConnection(WebSocketConnection):
    """A WebSocket whose messages begin with the number of their channel (channel.k8s.io).

    It is closed once all channels have been finished. Subclasses implement ``lost``.
    """

    def __init__(self, clock: IReactorTime) -> None:
        super().__init__(clock)
        self.channels: dict[int, ChannelStream] = {}
        self._channel: int | None = None

    def payload_received(self, data: bytes, finished: bool) -> None:
        if data and self._channel is None:
            self._channel = data[0]
            data = data[1:]
        if data and self._channel is not None:
            self.channel_received(self._channel, data)
        if finished:
            self._channel = None

    def channel_received(self, channel: int, data: bytes) -> None:
        """Hand on the next data of ``channel``; others than are used are ignored, as kubelet does.

        ``data`` is never empty.
        """
        if channel in self.channels:
            self.channels[channel].receive(data)


class ChannelStream(Stream):
    """One channel of ``connection``. It has no end of its own, nor can it be reset."""

    def __init__(self, connection: ChannelConnection, number: int) -> None:
        super().__init__()
        connection.channels[number] = self
        self._connection = connection
        self._number = number

    def write(self, data: bytes) -> None:
        """Send ``data``, which may be empty."""
        self._connection.send_message(bytes((self._number,)) + data)

    def finish(self) -> None:
        """Send no more; the last of a connection closes it."""
        self.sending = False
        if not any(one.sending for one in self._connection.channels.values()):
            self._connection.begin_close()
