"""A SPDY connection on a transport, on the server's side: the streams that a client opens.

A stream lives until both directions have ended (FIN), or one side has reset it. Input for a closed
stream is dropped, since the client may not have received its end yet. A violation of the protocol
ends the connection.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime

from yurtlab.node.streaming import spdy
from yurtlab.node.streaming.connection import Stream, StreamingConnection
from yurtlab.node.streaming.spdy import Headers

MAX_STREAMS: Final = 1024
"""The maximum number of a client's concurrent streams; a forwarded connection takes two."""


class SPDYStream(Stream):
    """One stream; the client has opened it, with ``headers``."""

    def __init__(self, connection: SPDYConnection, opened: spdy.SynStream) -> None:
        super().__init__()
        self.stream_id = opened.stream_id
        self.headers: Headers = opened.headers
        self.sending = not opened.unidirectional
        self._connection = connection

    def write(self, data: bytes) -> None:
        if self.sending:
            self._connection.send(self.stream_id, data)

    def finish(self) -> None:
        if self.sending:
            self.sending = False
            self._connection.send(self.stream_id, b"", fin=True)
            self._connection.settle(self)

    def reset(self) -> None:
        self._connection.reset(self, spdy.ResetStatus.CANCEL)


class SPDYConnection(StreamingConnection):
    """The protocol on a transport that has been switched to SPDY/3.1.

    Subclasses implement :meth:`stream_opened` and ``lost``.
    """

    def __init__(self, clock: IReactorTime) -> None:
        super().__init__(clock)
        self._reader = spdy.FrameReader()
        self._writer = spdy.FrameWriter()
        self._streams: dict[int, SPDYStream] = {}
        self._last_id = 0
        self._going_away = False

    # -- IProtocol -----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Deliver the contents of ``data`` to the streams."""
        self.client_active()
        try:
            for frame in self._reader.feed(data):
                if self.closing:
                    return
                self._received(frame)
        except spdy.SPDYError as error:
            self.fail(str(error))

    # -- for subclasses ------------------------------------------------------------------------

    def stream_opened(self, stream: SPDYStream) -> None:
        """:meth:`accept` or :meth:`refuse` the stream, now. For subclasses."""
        raise NotImplementedError

    def accept(self, stream: SPDYStream) -> None:
        """Accept ``stream``, and keep it."""
        self._streams[stream.stream_id] = stream
        self.answer(self._writer.syn_reply(stream.stream_id, {}))

    def refuse(self, stream: SPDYStream) -> None:
        """Reset a ``stream`` that is not wanted."""
        self.answer(self._writer.rst_stream(stream.stream_id, spdy.ResetStatus.REFUSED_STREAM))

    def fail(self, text: str) -> None:
        """Close the connection; ``text``, for the log, describes the client's violation."""
        if self.closing:
            return
        self.log.warn("SPDY connection closed: {text}", text=text)
        self._streams.clear()
        self.transport.write(self._writer.go_away(self._last_id, spdy.PROTOCOL_ERROR))
        self.close()

    # -- for the streams -----------------------------------------------------------------------

    def send(self, stream_id: int, data: bytes, fin: bool = False) -> None:
        """Send a piece of a stream."""
        if not self.closing:
            self.transport.write(self._writer.data(stream_id, data, fin))

    def settle(self, stream: SPDYStream) -> None:
        """Forget ``stream`` once both directions have ended."""
        if not stream.sending and not stream.receiving:
            self._streams.pop(stream.stream_id, None)

    def reset(self, stream: SPDYStream, status: spdy.ResetStatus) -> None:
        """End both directions of ``stream``."""
        if self._streams.pop(stream.stream_id, None) is None:
            return
        stream.sending = stream.receiving = False
        if not self.closing:
            self.answer(self._writer.rst_stream(stream.stream_id, status))

    # -- frames --------------------------------------------------------------------------------

    def _received(self, frame: spdy.Frame) -> None:
        match frame:
            case spdy.Data():
                self._data(frame)
            case spdy.SynStream():
                self._syn_stream(frame)
            case spdy.RstStream():
                self._rst_stream(frame)
            case spdy.Ping():
                if frame.ping_id % 2:
                    self.answer(self._writer.ping(frame.ping_id))
            case spdy.GoAway():
                self._going_away = True
            case spdy.StreamHeaders(is_reply=False):
                self._data(spdy.Data(frame.stream_id, b"", frame.fin))
            case spdy.StreamHeaders():
                raise spdy.SPDYError("a SYN_REPLY for a stream that was never opened")

    def _syn_stream(self, opened: spdy.SynStream) -> None:
        stream_id = opened.stream_id
        if not stream_id % 2 or stream_id <= self._last_id:
            raise spdy.SPDYError(f"a client cannot open stream {stream_id} now")
        self._last_id = stream_id
        stream = SPDYStream(self, opened)
        if self._going_away or len(self._streams) >= MAX_STREAMS:
            self.refuse(stream)
            return
        self.stream_opened(stream)
        if opened.fin:
            self._end_input(stream)

    def _data(self, data: spdy.Data) -> None:
        stream = self._streams.get(data.stream_id)
        if stream is None:
            if data.stream_id > self._last_id or not data.stream_id % 2:
                raise spdy.SPDYError(f"a frame for stream {data.stream_id}, which does not exist")
            return
        if not stream.receiving:
            self.reset(stream, spdy.ResetStatus.STREAM_ALREADY_CLOSED)
            stream.was_reset()
            return
        if data.payload:
            stream.receive(data.payload)
        if data.fin and stream.receiving:
            self._end_input(stream)

    def _end_input(self, stream: SPDYStream) -> None:
        stream.receiving = False
        self.settle(stream)
        stream.ended()

    def _rst_stream(self, frame: spdy.RstStream) -> None:
        stream = self._streams.pop(frame.stream_id, None)
        if stream is not None:
            stream.sending = stream.receiving = False
            stream.was_reset()
        elif frame.stream_id > self._last_id or not frame.stream_id % 2:
            raise spdy.SPDYError(f"a reset of stream {frame.stream_id}, which does not exist")
