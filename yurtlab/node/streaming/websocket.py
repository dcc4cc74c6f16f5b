"""WebSocket connections (RFC 6455) on the server's side, and the channels of Kubernetes in them.

The frames are wsproto's. Messages are delivered in the pieces in which they arrive, so neither
messages nor frames need a size limit.
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

_CLEAN: Final = (CloseReason.NORMAL_CLOSURE, CloseReason.GOING_AWAY, CloseReason.NO_STATUS_RCVD)

HEARTBEAT: Final = 15.0
"""The seconds between the pongs to a client whose input is paused: its pings are not read then, and
kubectl gives up after 61 seconds without a pong. RFC 6455 section 5.5.3 allows them. A
kubectl that cannot write for 60 seconds gives up in any case."""

CLOSE_CHANNEL: Final = 255
"""The channel of v5.channel.k8s.io that carries the number of an ended channel (KEP-4006)."""


class WebSocketConnection(StreamingConnection):
    """The protocol on a transport that has been switched to WebSocket.

    Subclasses implement :meth:`payload_received` and ``lost``.
    """

    def __init__(self, clock: IReactorTime) -> None:
        super().__init__(clock)
        self._websocket = Connection(ConnectionType.SERVER)
        self._heartbeat = LoopingCall(self._send_heartbeat)
        self._heartbeat.clock = clock

    # -- IProtocol -----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Parse the frames, or pieces of them, in ``data``."""
        self.client_active()
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
        """Receive the next piece of a message; ``finished`` marks the last. For subclasses."""
        raise NotImplementedError

    def client_closed(self) -> None:
        """Handle a clean close by the client, which may have sent everything. For subclasses."""

    def send_message(self, data: bytes) -> None:
        """Send one message."""
        if not self.closing and self._websocket.state is ConnectionState.OPEN:
            self.transport.write(self._websocket.send(BytesMessage(data=data)))

    def begin_close(self) -> None:
        """Start the closing handshake of RFC 6455 section 7, and wait for the client."""
        if not self.closing and self._websocket.state is ConnectionState.OPEN:
            closed = CloseConnection(code=CloseReason.NORMAL_CLOSURE)
            self.transport.write(self._websocket.send(closed))
            self._stop_heartbeat()
            self.linger()

    def pause_input(self) -> None:
        """Pause reading, and send pongs so that the client does not give up."""
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
                # The Python client sends text as such, but means the bytes.
                self.payload_received(event.data.encode(), event.message_finished)
            case Ping():
                if self._websocket.state is ConnectionState.OPEN:
                    self.answer(self._websocket.send(event.response()))
            case CloseConnection():
                self._close_received(event)

    def _close_received(self, event: CloseConnection) -> None:
        """Close, after the reply if one is due.

        A protocol violation by the client is such an event, too, with the close code to send.
        """
        state = self._websocket.state
        if state is not ConnectionState.OPEN and event.code in _CLEAN:
            self.client_closed()
        if state is ConnectionState.REMOTE_CLOSING:
            self.transport.write(self._websocket.send(event.response()))
        if state is ConnectionState.OPEN:
            self.log.warn("WebSocket closed: {reason}", reason=event.reason)
            self.transport.write(self._websocket.send(event))
        self._stop_heartbeat()
        self.close()

    def _send_heartbeat(self) -> None:
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
        """Deliver the next data of ``channel``; unused channels are ignored, as in the kubelet.

        ``data`` is never empty.
        """
        if channel in self.channels:
            self.channels[channel].receive(data)


class ChannelStream(Stream):
    """A channel of ``connection``. It cannot be ended separately or reset."""

    def __init__(self, connection: ChannelConnection, number: int) -> None:
        super().__init__()
        connection.channels[number] = self
        self._connection = connection
        self._number = number

    def write(self, data: bytes) -> None:
        """Send ``data``, which may be empty."""
        self._connection.send_message(bytes((self._number,)) + data)

    def finish(self) -> None:
        """End the output; the last channel of a connection closes it."""
        self.sending = False
        if not any(one.sending for one in self._connection.channels.values()):
            self._connection.begin_close()
