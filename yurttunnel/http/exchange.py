"""One request and its response, on the server side."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocol
from zope.interface import implementer

from yurttunnel.http.body import NO_BODY_READER, BodyError, BodyReader, BodyWriter
from yurttunnel.http.connection import declared_length
from yurttunnel.http.errors import error_content
from yurttunnel.http.exchange_side import ExchangeSide
from yurttunnel.http.fields import Fields
from yurttunnel.http.framing import CHUNKED, NO_BODY, UNTIL_CLOSE, Framing, of_length
from yurttunnel.http.head import REASONS, RequestHead, format_response_head
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IBodySource, IExchange

if TYPE_CHECKING:
    from yurttunnel.http.server_connection import ServerConnection


class _State(enum.Enum):
    """The state of the response."""

    WAITING = enum.auto()
    """Nothing but interim responses has been sent."""
    BODY = enum.auto()
    """The head has been sent; the body follows."""
    SWITCHED = enum.auto()
    """The connection belongs to another protocol."""
    ENDED = enum.auto()
    """The response is complete, or has been abandoned."""


# Unpacked once: an attribute access to an enum costs as much as a function call.
_WAITING, _BODY, _SWITCHED, _ENDED = _State


@implementer(IExchange)
class ServerExchange(ExchangeSide):
    """The exchange that a server connection creates for each request.

    In addition to the promises of ``IExchange``: a body written to a response without one (to HEAD,
    204, 304) is dropped, so a handler of GET also handles HEAD. Only the fields for the framing of
    the body and the persistence of the connection are added; ``Date``, for example, is up to the
    origin.
    """

    _connection: ServerConnection
    head_sent = False
    status = 0
    failure = ""
    bytes_sent = 0
    _state = _WAITING
    _persistent = False
    _bodiless = False
    _delivering = False
    _sink: IBodySink
    _error: ExchangeFailed | None = None

    def __init__(self, connection: ServerConnection, head: RequestHead, framing: Framing) -> None:
        self._connection = connection
        self._connection_writer = connection.writer
        self.head = head
        self.secure = connection.secure
        self.transport = connection.transport
        self.has_body = framing.announces_body
        self.reader = BodyReader(framing) if framing.announces_body else NO_BODY_READER
        self.awaits_continue: bool = (
            self.has_body and head.version == "1.1" and b"expect" in head.by_name
        )
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        self._callbacks: list[Callable[[ExchangeFailed | None], object]] = []

    # -- the response --------------------------------------------------------------------------

    def send_informational(self, status: int, fields: Fields = ()) -> None:
        if not 100 <= status <= 199 or status == 101:
            raise ValueError(f"{status} is not the status of an interim response")
        if self._state is _WAITING and self.head.version == "1.1":
            head = format_response_head(status, REASONS.get(status, b""), _without_length(fields))
            self._connection_writer.write(head)
            if status == 100:
                self._stop_awaiting_continue()

    def send_head(self, status: int, fields: Fields = (), reason: bytes = b"") -> None:
        if self._state is not _ENDED:
            # A handler that rejects a request before its body is complete will not read the rest.
            self._begin(status, fields, reason, self._delivering and status < 400)

    def _begin(self, status: int, fields: Fields, reason: bytes, reads_rest: bool) -> None:
        """Send the head; ``reads_rest`` is whether the rest of the request body will be read."""
        framing = self._framing(status, declared_length(fields))
        head = self._written_head(status, fields, reason, framing, reads_rest)
        self._writer = BodyWriter(framing)
        self._connection_writer.write(head)

    def _written_head(
        self, status: int, fields: Fields, reason: bytes, framing: Framing, reads_rest: bool
    ) -> bytes:
        """Return the serialized head, and mark the response as begun."""
        if self._state is not _WAITING:
            raise RuntimeError("the response has begun already")
        if not 200 <= status <= 599:
            raise ValueError(f"{status} is not the status of a final response")
        if self.head.method == b"CONNECT" and status <= 299:
            raise ValueError("a CONNECT that succeeds is answered with switch")
        persistent = (
            framing is not UNTIL_CLOSE
            and (self.reader.ended or reads_rest)
            and self._connection.persists(self)
        )
        if status == 204:
            fields = _without_length(fields)
        if framing is CHUNKED:
            fields = [*fields, (b"Transfer-Encoding", b"chunked")]
        if not persistent:
            fields = [*fields, (b"Connection", b"close")]
        elif self.head.version == "1.0":
            fields = [*fields, (b"Connection", b"keep-alive")]
        head = format_response_head(status, reason or REASONS.get(status, b""), fields)
        self.status = status
        self.head_sent = True
        self._state = _BODY
        self._persistent = persistent
        self._bodiless = framing is NO_BODY
        return head

    def write(self, data: bytes) -> None:
        if self._state is not _BODY:
            self._check_begun()
            return
        if self._bodiless or not data:
            return
        if self._send(data):
            self.bytes_sent += len(data)

    def finish(self, trailers: Fields = ()) -> None:
        if self._state is not _BODY:
            self._check_begun()
            return
        if not self._send_last(trailers):
            return
        self._connection_writer.uncork()
        self.end(None)
        self._connection.exchange_complete(self, self._persistent)

    def respond(self, status: int, fields: Fields = (), body: bytes = b"") -> None:
        self._send_whole(status, fields, b"", body)

    def _send_whole(self, status: int, fields: Fields, reason: bytes, body: bytes) -> None:
        if self._state is _ENDED:
            return
        length = declared_length(fields)
        if length is None and status not in (204, 304):
            length = len(body)
            fields = [*fields, (b"Content-Length", b"%d" % length)]
        framing = self._framing(status, length)
        if framing is not NO_BODY and length != len(body):
            raise ValueError(f"the body has {len(body)} bytes, and Content-Length says {length}")
        head = self._written_head(status, fields, reason, framing, False)
        if framing is not NO_BODY:
            self.bytes_sent = len(body)
            head += body
        self._connection_writer.write(head)
        self.end(None)
        self._connection.exchange_complete(self, self._persistent)

    def respond_from(
        self, status: int, fields: Fields, source: IBodySource, reason: bytes = b""
    ) -> None:
        if self._state is _ENDED:
            return
        body = source.take_whole()
        if body is not None:
            self._send_whole(status, fields, reason, body)
            return
        self._connection_writer.cork()
        try:
            reads_rest = (self._delivering or source is self) and status < 400
            self._begin(status, fields, reason, reads_rest)
            self.registerProducer(source, True)
            source.deliver_body(self)
        finally:
            self._connection_writer.uncork()

    def fail(self, status: int, text: str) -> None:
        if self.head_sent:
            self.abort()
        else:
            self.failure = text
            self.respond(status, *error_content(status, text, self.head))

    def refuse(
        self,
        status: int,
        text: str,
        headers: Iterable[tuple[str, str]] = (),
        in_status_line: bool = False,
    ) -> None:
        if self.head_sent:
            self.abort()
        elif self._state is not _ENDED:
            self.status = status
            self.head_sent = True
            self.end(None)
            self._connection.respond_and_close(status, text, self.head, headers, in_status_line)

    def switch(self, status: int, reason: bytes, fields: Fields, protocol: IProtocol) -> None:
        """See ``IExchange``; raises ``ValueError`` while the request's body is incomplete."""
        if self._state is _ENDED:
            return
        if self._state is not _WAITING:
            raise RuntimeError("the response has begun already")
        if not self.reader.ended:
            raise ValueError("the protocol cannot change before the request's body has been read")
        fields = _without_length(fields) if fields else ()
        response = format_response_head(status, reason or REASONS.get(status, b""), fields)
        self.status = status
        self.head_sent = True
        self._state = _SWITCHED
        self._connection.switch(response, protocol, isolated=self.head.method == b"CONNECT")

    def abort(self) -> None:
        if self._state is not _ENDED:
            # Flush what is corked, so that the client sees a truncated response rather than none.
            self._connection_writer.uncork()
            # Without it, a body that the end of the connection ends would seem complete.
            needs_reset = self._state is _SWITCHED or self.head.version == "1.0"
            self.end(ExchangeFailed("the exchange was aborted"))
            self._connection.break_off(needs_reset)

    # -- the request's body --------------------------------------------------------------------

    @property
    def receivable(self) -> bool:
        return not (self._state is _ENDED or self.reader.ended)

    def deliver_body(self, sink: IBodySink) -> None:
        if self._delivering:
            raise RuntimeError("the body is delivered already")
        self._delivering = True
        if self._state is _ENDED:
            return
        if self.reader.ended:
            sink.finish()
            return
        self._sink = sink
        deliver = self._deliver_without_continue if self.awaits_continue else sink.write
        self._connection.take_body(self.reader, deliver, self._body_complete)

    def take_whole(self) -> bytes | None:
        """See ``IBodySource``; request bodies are always delivered."""
        return None

    # -- the end -------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the response is complete or has been abandoned."""
        return self._state is _ENDED

    def on_end(self, callback: Callable[[ExchangeFailed | None], object]) -> None:
        if self._state is _ENDED:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    def end(self, error: ExchangeFailed | None) -> None:
        """End the exchange and call the callbacks; called by the connection."""
        if self._state is _ENDED:
            return
        self._connection_writer.producer = None
        self._state = _ENDED
        self._error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(error)
            except Exception:
                # The other callbacks still have to be called.
                self._log.failure("Defect: a callback at the end of an HTTP exchange failed")

    # -- helpers -------------------------------------------------------------------------------

    def _check_begun(self) -> None:
        if self._state is _WAITING:
            raise RuntimeError("a response begins with send_head")

    def _framing(self, status: int, length: int | None) -> Framing:
        """Return the framing of the response body; ``length`` is its ``Content-Length``, if any."""
        if status in (204, 304) or self.head.method == b"HEAD":
            return NO_BODY
        if length is not None:
            return of_length(length)
        return CHUNKED if self.head.version == "1.1" else UNTIL_CLOSE

    def _deliver_without_continue(self, data: bytes) -> None:
        """Deliver a body that the client may have sent without waiting for ``100 Continue``."""
        self._stop_awaiting_continue()
        self._sink.write(data)

    def _stop_awaiting_continue(self) -> None:
        """Note that the client no longer waits for ``100 Continue``."""
        if self.awaits_continue:
            self.awaits_continue = False
            self._connection.body_requested()

    def _body_complete(self) -> None:
        sink = self._sink
        # The sink may refer to the exchange as its source.
        del self._sink
        if self._state is not _ENDED:
            sink.finish(self.reader.trailers)

    def wrong_length(self, error: BodyError) -> None:
        """Abort after a body whose length does not match its head."""
        self._log.error(
            "Defect: the response to {method} {target} does not match its length: {error}",
            method=self.head.method.decode("ascii"),
            # Without the query, which may contain the command of an exec request.
            target=self.head.target.partition(b"?")[0].decode("ascii"),
            error=error,
        )
        self.abort()


def _without_length(fields: Fields) -> list[tuple[bytes, bytes]]:
    """Return the fields of a response that must not have a length (RFC 9110 section 8.6)."""
    return [field for field in fields if field[0].lower() != b"content-length"]
