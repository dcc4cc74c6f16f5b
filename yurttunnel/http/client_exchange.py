"""One request and its response, on the client side."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.body import NO_BODY_WRITER, BodyError, BodyReader, BodyWriter
from yurttunnel.http.exchange_side import ExchangeSide
from yurttunnel.http.fields import Fields, keeps_alive
from yurttunnel.http.framing import NO_BODY, BodyKind, Framing
from yurttunnel.http.head import ResponseHead
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IClientExchange, IResponseReceiver

if TYPE_CHECKING:
    from yurttunnel.http.client import ClientConnection


class _State(enum.Enum):
    """The state of the response."""

    WAITING = enum.auto()
    """It has not begun."""
    UNWANTED = enum.auto()
    """Its head has arrived; its body has no consumer yet."""
    READING = enum.auto()
    """Its body is being read."""
    SWITCHED = enum.auto()
    """The connection belongs to another protocol."""
    ENDED = enum.auto()
    """It is complete, or has failed."""


# Unpacked once: an attribute access to an enum costs as much as a function call.
_WAITING, _UNWANTED, _READING, _SWITCHED, _ENDED = _State


@implementer(IClientExchange)
class ClientExchange(ExchangeSide):
    """One request and its response, on a connection."""

    _connection: ClientConnection
    has_body = False
    keeps_alive = False
    """Whether the origin accepts another request after this one."""
    reader: BodyReader
    _sink: IBodySink
    _framing = NO_BODY
    _state = _WAITING

    def __init__(
        self,
        connection: ClientConnection,
        method: bytes,
        framing: Framing,
        receiver: IResponseReceiver,
        upgrade: bool,
    ) -> None:
        self._connection = connection
        self._connection_writer = connection.writer
        self.method = method
        self.receiver = receiver
        self.request_complete = not framing.announces_body
        """Whether the whole request has been written to the transport."""
        self._writer = BodyWriter(framing) if framing.announces_body else NO_BODY_WRITER
        self._upgrade = upgrade

    # -- the request's body --------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self.ended or not data:
            return
        self._send(data)

    def finish(self, trailers: Fields = ()) -> None:
        if self.ended or self.request_complete:
            return
        self.request_complete = self._send_last(trailers)

    # -- the response --------------------------------------------------------------------------

    @property
    def receivable(self) -> bool:
        return self._state in (_UNWANTED, _READING)

    @property
    def reading(self) -> bool:
        """Whether the body has a consumer."""
        return self._state is _READING

    @property
    def may_switch(self) -> bool:
        """Whether a 101 response is acceptable now."""
        return self._upgrade and self.request_complete

    def response_began(self, head: ResponseHead, framing: Framing) -> None:
        """Notify the receiver of the response head; called by the connection."""
        self._framing = framing
        self.keeps_alive = (
            framing.kind is not BodyKind.UNTIL_CLOSE
            and keeps_alive(head)
            # For HEAD, a server may go on making a body without a length, such as a watch, and
            # discard it. It reads no other request before the end.
            and (
                self.method != b"HEAD"
                or head.status in (204, 304)
                or b"content-length" in head.by_name
            )
        )
        self.has_body = framing.announces_body
        self._state = _UNWANTED
        self.receiver.response_received(head)

    def deliver_body(self, sink: IBodySink) -> None:
        if self.ended:
            return
        if self._state is not _UNWANTED:
            raise RuntimeError("there is no response whose body is not delivered already")
        self._state = _READING
        self._sink = sink
        self.reader = BodyReader(self._framing)
        if self.reader.ended:
            self._connection.response_complete(self)
        else:
            self._connection.take_body(sink.write)

    def take_whole(self) -> bytes | None:
        """See ``IBodySource``; completes the exchange without notifying the receiver."""
        framing = self._framing
        if self._state is not _UNWANTED or framing.kind is not BodyKind.LENGTH:
            return None
        return self._connection.take_whole(self, framing.length)

    def switch(self, protocol: IProtocol) -> None:
        if self.ended:
            return
        if self._state is not _UNWANTED:
            raise RuntimeError("there is no response that hands the connection over")
        self._state = _SWITCHED
        self._connection.hand_over(protocol, self._connection.transport)

    # -- the end -------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self._state is _ENDED

    def abort(self) -> None:
        if self._state is not _ENDED:
            self._connection.fail("the exchange was aborted")

    def cancel(self) -> None:
        """Abort as :meth:`abort` does, without notifying the receiver."""
        if self._state is not _ENDED:
            self._state = _ENDED
            self._connection.abort()

    def complete(self) -> None:
        """Finish the sink and notify the receiver of the end; called by the connection."""
        sink = self._sink
        # The sink may refer to the exchange as its source.
        del self._sink
        sink.finish(self.reader.trailers)
        self.receiver.exchange_ended(None)

    def end(self) -> None:
        """Mark the exchange as ended; the connection calls this, then notifies the receiver."""
        self._state = _ENDED

    def switched_connection_ended(self, reason: Failure) -> None:
        """Handle the end of a connection that was handed over; called by the connection."""
        self._state = _ENDED
        error = None
        if not isinstance(reason.value, ConnectionDone):
            error = ExchangeFailed(f"the connection broke: {reason.value}")
            error.__cause__ = reason.value
        self.receiver.exchange_ended(error)

    def wrong_length(self, error: BodyError) -> None:
        """Abort after a body whose length does not match its head."""
        self._log.error("Defect: the body of a request does not match its length: {e}", e=error)
        self.abort()
