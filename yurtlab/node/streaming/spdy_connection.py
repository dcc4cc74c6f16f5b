"""A SPDY connection on a transport, on the side that serves: the streams that a client opens.

A stream lives until both directions have ended (FIN), or one side has reset it. What comes for a
stream that is no more is dropped, since the client may not have learned of its end. What breaks
the protocol ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from yurtlab.node.streaming import spdy
from yurtlab.node.streaming.connection import StreamingConnection
from yurtlab.node.streaming.spdy import Headers

MAX_STREAMS: Final = 1024
"""Streams that a client may have at a time; a forwarded connection takes two."""


def _ignore(*_: bytes) -> None:
    """Drop what comes: the other direction counts."""


class StreamOwner(Protocol):
    """Who decides what the streams of a connection are."""

    def stream_opened(self, stream: SPDYStream) -> None:
        """``accept`` or ``refuse`` the stream, now."""

    def connection_lost(self, reason: Failure) -> None:
        """The connection is gone; the streams are not told."""


class SPDYStream:
    """One stream; the client has opened it, with ``headers``.

    Once it is accepted, ``receive(data)`` gets what comes, ``ended()`` is called when the client
    sends no more, and ``was_reset()`` when it has ended both directions.
    """

    def __init__(self, connection: SPDYConnection, opened: spdy.SynStream) -> None:
        self.stream_id = opened.stream_id
        self.headers: Headers = opened.headers
        self.receive: Callable[[bytes], object] = _ignore
        self.ended: Callable[[], object] = _ignore
        self.was_reset: Callable[[], object] = _ignore
        self.receiving = True
        self.sending = not opened.unidirectional
        self._connection = connection

    def accept(
        self,
        receive: Callable[[bytes], object] = _ignore,
        ended: Callable[[], object] = _ignore,
        was_reset: Callable[[], object] = _ignore,
    ) -> None:
        """Answer that the stream is wanted; on one without these clients only listen."""
        self.receive, self.ended, self.was_reset = receive, ended, was_reset
        self._connection.accept(self)

    def refuse(self) -> None:
        """Answer that the stream is not wanted."""
        self._connection.refuse(self)

    def write(self, data: bytes) -> None:
        """Send ``data``, if this direction has not ended."""
        if self.sending:
            self._connection.send(self.stream_id, data)

    def finish(self) -> None:
        """End this direction."""
        if self.sending:
            self.sending = False
            self._connection.send(self.stream_id, b"", fin=True)
            self._connection.settle(self)

    def reset(self) -> None:
        """End both directions, so that it does not look complete."""
        self._connection.reset(self, spdy.ResetStatus.CANCEL)


class SPDYConnection(StreamingConnection):
    """The protocol on a transport that has been switched to SPDY/3.1."""

    def __init__(self, clock: IReactorTime, owner: StreamOwner) -> None:
        super().__init__(clock)
        self._owner = owner
        self._reader = spdy.FrameReader()
        self._writer = spdy.FrameWriter()
        self._streams: dict[int, SPDYStream] = {}
        self._last_id = 0
        self._going_away = False

    # -- IProtocol -----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Hand what is in ``data`` to the streams."""
        self.heard()
        try:
            for frame in self._reader.feed(data):
                if self.closing:
                    return
                self._received(frame)
        except spdy.SPDYError as error:
            self.fail(str(error))

    def lost(self, reason: Failure) -> None:
        self._streams.clear()
        self._owner.connection_lost(reason)

    # -- for the owner -------------------------------------------------------------------------

    def fail(self, text: str) -> None:
        """Give the connection up; ``text``, for the log, says what the client did."""
        if self.closing:
            return
        self.log.warn("SPDY connection given up: {text}", text=text)
        self._streams.clear()
        status = spdy.GoAwayStatus.PROTOCOL_ERROR
        self.transport.write(self._writer.go_away(self._last_id, status))
        self.close()

    # -- for the streams -----------------------------------------------------------------------

    def accept(self, stream: SPDYStream) -> None:
        """Keep ``stream``."""
        self._streams[stream.stream_id] = stream
        self.answer(self._writer.syn_reply(stream.stream_id, {}))

    def refuse(self, stream: SPDYStream) -> None:
        """Reset ``stream``, which was never kept."""
        self.answer(self._writer.rst_stream(stream.stream_id, spdy.ResetStatus.REFUSED_STREAM))

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
            case spdy.MoreHeaders():
                self._data(spdy.Data(frame.stream_id, b"", frame.fin))
            case spdy.SynReply():
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
        self._owner.stream_opened(stream)
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
