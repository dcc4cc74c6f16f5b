"""Streams as Twisted transports, with producers, consumers and half-close."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHalfCloseableProtocol,
    IProducer,
    IProtocol,
    IPullProducer,
    IPushProducer,
)
from twisted.internet.protocol import connectionDone
from twisted.internet.task import CooperativeTask
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IStream, IStreamRequest, StreamFailed
from yurttunnel.tunnel.shares import Holder
from yurttunnel.wire.codes import Code
from yurttunnel.wire.stream import Stream

if TYPE_CHECKING:
    from yurttunnel.tunnel.session import TunnelSession

LINGER = 30.0
"""The time in seconds for the peer of a closed stream to accept the remaining data and to end the
stream too. It restarts if more was sent meanwhile, or if the session has no connection. Once all
data and the FIN have been sent, it does not restart any more for a connected peer."""


@implementer(IAddress)
class StreamAddress:
    """The address of one end of a stream: a target at a node, or this end of the session."""

    def __init__(self, node: str, target: str) -> None:
        self.node = node
        self.target = target

    def __repr__(self) -> str:
        """Return the node and the target as ``--forward`` spells them."""
        return f"{self.node}/{self.target}"


@implementer(IStream)
class TunnelStream:
    """One stream of a session as a transport.

    It also implements :class:`~yurttunnel.wire.stream.StreamEvents` for the wire stream. Like a
    socket, it never calls ``connectionLost`` from within a method that its user calls. ``holder``
    is set if this end opens the stream.
    """

    # Twisted's convention for a transport that is being closed.
    disconnecting = False

    def __init__(
        self, session: TunnelSession, request_id: str, holder: Holder | None = None
    ) -> None:
        self.request_id = request_id
        self._session = session
        self.holder = holder
        """The holder of the stream; ``None`` if the peer has opened it."""
        self._wire: Stream
        self._opened: Deferred[IStream] | None = None
        self._requested_at = 0.0
        self.user: IProtocol | None = None
        """The attached protocol."""
        self._producer: IPushProducer | None = None
        self._pull: CooperativeTask[Iterator[None]] | None = None
        self._producer_paused = False
        self._end: Failure | None = None
        self._linger: IDelayedCall | None = None
        self._attached = False
        self._reading = True
        self._resuming = False
        self._in_user_call = False

    # -- opening -------------------------------------------------------------------------------

    def opening(self, wire: Stream) -> Deferred[IStream]:
        """Wait for the answer to the OPEN of ``wire``; cancelling resets the stream."""
        self._wire = wire
        self._requested_at = self._session.clock.seconds()
        wire.deliver = self._deliver
        self._opened = Deferred(lambda _: self.abort(Code.CANCELLED, "the dial was cancelled"))
        return self._opened

    def accepted(self, wire: Stream) -> None:
        """Take over ``wire``, which the peer opened and this end has accepted."""
        self._wire = wire
        wire.deliver = self._deliver
        wire.events = self

    def ended_early(self, wire: Stream, code: Code, text: str) -> None:
        """Represent a stream that ended before it was used; :meth:`attach` reports that."""
        self._wire = wire
        self._end = Failure(StreamFailed(code, text))

    def attach(self, protocol: IProtocol) -> None:
        """Set the stream's user; see :class:`IStream`."""
        self.user = protocol
        protocol.makeConnection(self)
        self._attached = True
        if self._end is not None:
            self._session.call_soon(self._lose_protocol, self._end)
        elif self._reading:
            self.resumeProducing()

    # -- ITransport ----------------------------------------------------------------------------

    @property
    def bytes_received(self) -> int:
        return self._wire.window.received

    @property
    def bytes_sent(self) -> int:
        return self._wire.sent

    def write(self, data: bytes) -> None:
        """Send ``data``; a registered producer is paused while the send buffer is full."""
        if isinstance(data, str):
            raise TypeError("a stream carries bytes, not text")
        session = self._session
        session.wire.send(self._wire, data)
        session.request_flush()
        if self._wire.full and not self._producer_paused and self._producer is not None:
            self._producer_paused = True
            self._producer.pauseProducing()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseWriteConnection(self) -> None:
        self._finish()

    def loseConnection(self) -> None:
        """Flush written data, end the sending direction, and discard the receiving one.

        As with a socket, a pull producer first sends all that it has.
        """
        if self.disconnecting or self._wire.closed:
            return
        self.disconnecting = True
        # Data received now would reset the stream and drop what is still to be sent.
        self._session.wire.pause(self._wire)
        self._linger = self._session.clock.callLater(LINGER, self._lingered, self._wire.sent)
        if self._pull is None:
            self._finish()

    def abortConnection(self) -> None:
        self.abort(Code.CANCELLED, "the connection was aborted")

    def abort(self, code: Code, text: str) -> None:
        self._in_user_call = True
        self._session.wire.reset(self._wire, code, text)
        self._in_user_call = False
        self._session.request_flush()

    def getPeer(self) -> IAddress:
        request = self._wire.request
        host = f"[{request.host}]" if ":" in request.host else request.host
        return StreamAddress(self._session.peer_name, f"{host}:{request.port}")

    def getHost(self) -> IAddress:
        return StreamAddress(self._session.local_name, self.request_id)

    # -- IPushProducer: data from the peer -----------------------------------------------------

    def pauseProducing(self) -> None:
        self._reading = False
        if not self.disconnecting:
            # After a close the user no longer controls reading: the peer's FIN must be received.
            self._session.wire.pause(self._wire)

    def resumeProducing(self) -> None:
        self._reading = True
        wire = self._wire
        if not wire.paused or not self._attached or self.disconnecting or wire.closed:
            return
        if not wire.backlog and not wire.end_waiting:
            # Nothing is buffered, as on most new streams.
            wire.paused = False
            return
        if self._resuming:
            # Called by the protocol from within the loop that delivers the buffer; it continues.
            wire.paused = False
            return
        self._resuming = True
        # The buffer may contain the peer's FIN, which may end the stream.
        in_user_call, self._in_user_call = self._in_user_call, True
        self._session.wire.resume(wire, self._session.clock.seconds())
        self._in_user_call = in_user_call
        self._resuming = False
        self._session.request_flush()

    def stopProducing(self) -> None:
        """Close the stream: its consumer is lost."""
        self.loseConnection()

    # -- IConsumer: data to the peer -----------------------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register a producer, paused while the send buffer is full; pull producers are driven."""
        if self._producer is not None:
            raise RuntimeError(f"{self!r} already has a producer")
        if self._wire.closed:
            producer.stopProducing()
            return
        # Not adapted: sockets do not require producers to declare their interface either.
        if streaming:
            self._producer = producer  # type: ignore[assignment] # see above
        else:
            pulled = _PulledProducer(producer, self.fail)  # type: ignore[arg-type] # see above
            self._pull = pulled.task = self._session.cooperator.cooperate(pulled.steps())
            self._producer = pulled
        if self._wire.full and self._producer is not None:
            self._producer_paused = True
            self._producer.pauseProducing()

    def unregisterProducer(self) -> None:
        self._producer = None
        self._producer_paused = False
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.stop()
            if self.disconnecting:
                self._finish()

    # -- StreamEvents --------------------------------------------------------------------------

    def stream_opened(self) -> None:
        """Notify the caller that opened the stream."""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._session.dial_answered(Code.DONE)
            self._session.observe_dial_duration(self._session.clock.seconds() - self._requested_at)
            opened.callback(self)

    def stream_ended(self) -> None:
        """Notify the protocol of the peer's FIN, as a TCP connection does."""
        if self.disconnecting:
            return
        if IHalfCloseableProtocol.providedBy(self.user):
            IHalfCloseableProtocol(self.user).readConnectionLost()
        else:
            self.loseConnection()

    def stream_writable(self) -> None:
        """Resume the producer."""
        if self._producer_paused and self._producer is not None:
            self._producer_paused = False
            self._producer.resumeProducing()

    def stream_closed(self, code: Code, text: str) -> None:
        """Notify the protocol, or the caller that waits for the opening, of the end."""
        # They refer to this stream, and this was the last event.
        del self._wire.events, self._wire.deliver
        if self.holder is not None:
            self._session.release_share(self.holder, self._wire.cancelled_at)
            self._session.count_traffic(self.holder, self.bytes_received, self.bytes_sent)
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        producer = self._producer
        if producer is not None:
            self.unregisterProducer()
        self._end = connectionDone if code is Code.DONE else Failure(StreamFailed(code, text))
        opened, self._opened = self._opened, None
        if opened is not None:
            self._session.dial_answered(code)
            opened.errback(self._end)
            return
        self._session.stream_ended(code)
        if self._in_user_call:
            self._session.call_soon(self._notify_end, producer, self._end)
        else:
            self._notify_end(producer, self._end)

    def settle_end(self) -> bool:
        """Notify the protocol if this direction's FIN has been sent; return whether it has."""
        wire = self._wire
        if not (wire.send_ended or wire.closed):
            return False
        if self.disconnecting:
            if not wire.closed:
                wire.deliver = self._reset_on_data
                self._session.wire.resume(wire, self._session.clock.seconds())
            self._lose_protocol(connectionDone)
        elif IHalfCloseableProtocol.providedBy(self.user):
            IHalfCloseableProtocol(self.user).writeConnectionLost()
        return True

    def fail(self, error: Exception) -> None:
        """Reset the stream and log ``error``, which its user has raised."""
        self.abort(Code.INTERNAL, "the stream's user failed")
        self._session.deliver_failed(self._wire, error)

    # -- helpers -------------------------------------------------------------------------------

    def _finish(self) -> None:
        # May be called within abort(), if a pull producer has delayed the close.
        in_user_call, self._in_user_call = self._in_user_call, True
        self._session.finish(self, self._wire)
        self._in_user_call = in_user_call

    def _lingered(self, sent: int) -> None:
        self._linger = None
        if self._wire.sent == sent and self._session.connected:
            self.abort(Code.CANCELLED, "the peer did not end the stream")
        else:
            clock = self._session.clock
            self._linger = clock.callLater(LINGER, self._lingered, self._wire.sent)

    def _notify_end(self, producer: IPushProducer | None, reason: Failure) -> None:
        try:
            if producer is not None:
                producer.stopProducing()
        finally:
            self._lose_protocol(reason)

    def _lose_protocol(self, reason: Failure) -> None:
        protocol, self.user = self.user, None
        if protocol is not None:
            protocol.connectionLost(reason)

    def _deliver(self, data: bytes) -> None:
        # Looked up each time, because protocols may replace their dataReceived.
        self.user.dataReceived(data)  # type: ignore[union-attr] # paused before attach()

    def _reset_on_data(self, data: bytes) -> None:
        """Reset the stream on data after a close, as a closed socket does."""
        self.abort(Code.CANCELLED, "the stream was closed")


@implementer(IPushProducer)
class _PulledProducer:
    """A pull producer as a push producer: called once per iteration until it is paused."""

    task: CooperativeTask[Iterator[None]]

    def __init__(self, producer: IPullProducer, failed: Callable[[Exception], None]) -> None:
        self._producer = producer
        self._failed = failed

    def steps(self) -> Iterator[None]:
        """Call the producer once a step; an exception resets the stream, which stops the task."""
        while True:
            try:
                self._producer.resumeProducing()
            except Exception as error:
                self._failed(error)
            yield

    def pauseProducing(self) -> None:
        self.task.pause()

    def resumeProducing(self) -> None:
        self.task.resume()

    def stopProducing(self) -> None:
        """Notify the producer that its consumer is lost."""
        self._producer.stopProducing()


@implementer(IStreamRequest)
class StreamRequest:
    """The peer's request for a stream; handles its events until it is accepted."""

    def __init__(self, session: TunnelSession, wire: Stream) -> None:
        self.host = wire.request.host
        self.port = wire.request.port
        self.timeout = wire.request.timeout / 1000
        self.request_id = wire.request.request_id
        self._session = session
        self._wire = wire
        self._cancelled: tuple[Code, str] | None = None
        self._on_cancel: list[Callable[[], object]] = []

    def accept(self) -> IStream:
        # The callbacks refer to this request.
        self._on_cancel.clear()
        stream = TunnelStream(self._session, self.request_id)
        if self._cancelled is not None:
            stream.ended_early(self._wire, *self._cancelled)
        else:
            self._session.dial_answered(Code.DONE)
            stream.accepted(self._wire)
            self._session.wire.accept(self._wire)
            self._session.request_flush()
        return stream

    def fail(self, code: Code, text: str) -> None:
        self._on_cancel.clear()
        if self._cancelled is None:
            self._session.dial_answered(code)
            self._session.wire.refuse(self._wire, code, text)
            # It is this request, and would be a cycle.
            del self._wire.events
            self._session.request_flush()

    def on_cancel(self, callback: Callable[[], object]) -> None:
        if self._cancelled is not None:
            callback()
        else:
            self._on_cancel.append(callback)

    def stream_closed(self, code: Code, text: str) -> None:
        """Notify the callbacks that no answer is needed any more."""
        # As in fail().
        del self._wire.events
        self._cancelled = (code, text)
        self._session.dial_answered(Code.CANCELLED)
        callbacks, self._on_cancel = self._on_cancel, []
        for callback in callbacks:
            callback()

    def stream_opened(self) -> None:
        """Raise ``AssertionError``: these events only follow this end's answer."""
        raise AssertionError("a peer's stream was opened by the peer")

    stream_ended = stream_writable = stream_opened
