"""An HTTP/1.1 client connection: one connection to one origin, one exchange at a time.

Nothing about a response is guessed. A response with ambiguous framing fails, and a connection is
reused only if the response ended where its framing says, with not a single byte after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IDelayedCall, IHandshakeListener, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.body import BodyError
from yurttunnel.http.client_exchange import ClientExchange
from yurttunnel.http.connection import HTTPConnection, declared_length, is_of_connection
from yurttunnel.http.fields import Fields, format_fields
from yurttunnel.http.framing import CHUNKED, NO_BODY, Framing, of_length, response_framing
from yurttunnel.http.head import (
    HeadError,
    HeadLimits,
    ResponseHead,
    ResponseHeadReader,
    format_request_head,
)
from yurttunnel.http.interfaces import ExchangeFailed, IResponseReceiver

MAX_INTERIM_RESPONSES = 16
MAX_INTERIM_BYTES = 64 * 1024
"""Limits on the interim responses of one exchange (RFC 9110 section 15.2 sets none; Go's net/http
has similar ones). Interim responses are forwarded without back-pressure, so this limits how much of
them is buffered."""

LINGER = 5.0
"""Seconds for an origin to receive the remaining data and to close TLS after this end has closed;
then the connection is aborted."""

_USUALLY_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})


class WrittenRequest(NamedTuple):
    """The head of a request, checked and serialized; it may be sent many times."""

    method: bytes
    head: bytes
    framing: Framing
    """The framing of the body that follows."""
    upgrade: bool
    """Whether a 101 response is accepted."""

    def with_field(self, name: bytes, value: bytes) -> WrittenRequest:
        """Return a copy of the request with one more field.

        Raises ``ValueError`` for a field that cannot be sent safely.
        """
        line = format_fields(((name, value),))
        if is_of_connection(name):
            raise ValueError(f"{name.decode()} cannot be added to a head")
        return WrittenRequest(
            self.method, b"%b%b\r\n" % (self.head[:-2], line), self.framing, self.upgrade
        )


def write_request(
    method: bytes, target: bytes, fields: Fields, *, has_body: bool = False, upgrade: bool = False
) -> WrittenRequest:
    """Check and serialize the head of a request.

    ``fields`` include ``Host``. With a ``Content-Length`` the body has that length. Without one it
    is sent chunked if ``has_body`` is true; otherwise there is no body. With ``upgrade`` the fields
    include ``Connection`` and ``Upgrade``, and a 101 is accepted.

    Raises ``ValueError`` for fields that cannot be sent safely, and for CONNECT, whose responses
    are framed differently (RFC 9110 section 9.3.6).
    """
    if method == b"CONNECT":
        raise ValueError("CONNECT cannot be sent")
    length = declared_length(fields, upgrade)
    # An empty body is complete already.
    framing = NO_BODY
    if length:
        framing = of_length(length)
    elif length is None and has_body:
        framing = CHUNKED
        fields = [*fields, (b"Transfer-Encoding", b"chunked")]
    elif length is None and method in _USUALLY_WITH_BODY:
        fields = [*fields, (b"Content-Length", b"0")]
    return WrittenRequest(method, format_request_head(method, target, fields), framing, upgrade)


@implementer(IHandshakeListener)
class ClientConnection(HTTPConnection):
    """A connection to one origin, over any transport.

    ``limits`` apply to response heads. A connection pool sets these callbacks:

    - ``on_response(connection, switches)`` when a final response has begun and is not complete at
      once. ``switches`` is true for a 101 that was requested, before the connection is handed over.
    - ``on_idle(connection)`` each time the connection can be reused;
    - ``on_lost(connection)`` when it is closed.

    Callers implement their own timeouts, except for :data:`LINGER`.
    """

    on_response: Callable[[ClientConnection, bool], object] | None = None
    on_idle: Callable[[ClientConnection], object] | None = None
    on_lost: Callable[[ClientConnection], object] | None = None

    def __init__(self, clock: IReactorTime, limits: HeadLimits | None = None) -> None:
        super().__init__()
        self.requests = 0
        """The number of requests sent."""
        self._clock = clock
        self._limits = limits or HeadLimits()
        self._exchange: ClientExchange | None = None
        self._reader: ResponseHeadReader
        self._response_begun = False
        self._interim_responses = 0
        self._interim_bytes = 0
        self._closing = False
        self._ready = False
        self._waiting: list[Deferred[ClientConnection]] = []
        self._end: Failure | None = None
        self._closing_timer: IDelayedCall | None = None

    # -- life ----------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Become ready, over TLS after the handshake."""
        self._take = self._take_unexpected
        if not self.secure:
            self._become_ready()

    def handshakeCompleted(self) -> None:
        """Become ready: the TLS handshake is complete."""
        self._become_ready()

    def when_ready(self) -> Deferred[ClientConnection]:
        """Return a ``Deferred`` that fires when requests can be sent, over TLS after the handshake.

        It fails with the reason if the connection is lost first.
        """
        if self._ready:
            return succeed(self)
        if self._end is not None:
            return fail(self._end)
        waiting: Deferred[ClientConnection] = Deferred()
        self._waiting.append(waiting)
        return waiting

    @property
    def reusable(self) -> bool:
        """Whether a request can be sent now."""
        return self._exchange is None and not (self._closing or self.lost or self._input_ended)

    def close(self) -> None:
        """Close the connection; an exchange in progress fails."""
        if self._exchange is not None:
            self.fail("the connection was closed")
        elif not self._closing and not self.lost:
            self._closing = True
            self._take = None
            self.writer.release()
            self._closing_timer = self._clock.callLater(LINGER, self._linger_over)
            self.transport.loseConnection()

    def abort(self) -> None:
        """Abort the connection, without notifying an exchange in progress."""
        self._closing = True
        self._take = None
        self._exchange = None
        if not self.lost:
            self.transport.abortConnection()

    def _become_ready(self) -> None:
        self._ready = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(self)

    def _linger_over(self) -> None:
        self._closing_timer = None
        self.abort()

    # -- requests ------------------------------------------------------------------------------

    def send(self, request: WrittenRequest, receiver: IResponseReceiver) -> ClientExchange:
        """Begin an exchange by sending the head of a request.

        Raises :class:`ExchangeFailed` if the connection is not reusable.
        """
        if not self.reusable:
            raise ExchangeFailed("the connection is closed", unanswered=True)
        exchange = ClientExchange(self, request.method, request.framing, receiver, request.upgrade)
        self.requests += 1
        self._response_begun = False
        self._interim_responses = 0
        self._interim_bytes = 0
        self._exchange = exchange
        self._reader = ResponseHeadReader(self._limits)
        self._take = self._take_head
        self.transport.write(request.head)
        return exchange

    # -- responses -----------------------------------------------------------------------------

    def _take_unexpected(self, data: bytes) -> None:
        """Abort a connection on which the origin sends data without a request."""
        self.abort()

    def _take_head(self, data: bytes) -> None:
        self._response_begun = True
        exchange, reader = self._exchange, self._reader
        assert exchange is not None
        try:
            head = reader.feed(data)
            if head is None:
                return
            framing = response_framing(exchange.method, head)
        except HeadError as error:
            self.fail(f"the response is invalid: {error}")
            return
        self._held = reader.early
        # The reader holds the whole head, which may be long, and the connection may live long.
        del self._reader
        if head.status == 101:
            self._switch(exchange, head, framing)
        elif head.status < 200:
            self._interim_received(exchange, head, reader.size)
        else:
            self._take = None
            exchange.response_began(head, framing)
            if self._exchange is exchange and self.on_response is not None:
                self.on_response(self, False)

    def _switch(self, exchange: ClientExchange, head: ResponseHead, framing: Framing) -> None:
        self._take = None
        if not exchange.may_switch:
            self.fail("the origin switched protocols although no upgrade was requested")
            return
        if self.on_response is not None:
            self.on_response(self, True)
        if self._exchange is not exchange:
            # A caller that got a connection from the pool in this callback has ended it.
            return
        exchange.response_began(head, framing)
        if self._exchange is exchange and self._user is None:
            # The receiver has neither switched nor aborted.
            exchange.abort()

    def _interim_received(self, exchange: ClientExchange, head: ResponseHead, size: int) -> None:
        self._interim_responses += 1
        self._interim_bytes += size
        if (
            self._interim_responses > MAX_INTERIM_RESPONSES
            or self._interim_bytes > MAX_INTERIM_BYTES
        ):
            self.fail("the response is invalid: too many interim responses")
            return
        self._reader = ResponseHeadReader(self._limits)
        exchange.receiver.informational_received(head)

    def take_body(self, deliver: Callable[[bytes], object]) -> None:
        """Read the response body; called by the exchange."""
        self._deliver = deliver
        self._take = self._take_body
        if self._taking:
            # Deliver what came with the head in the same call, so that both are forwarded together.
            held, self._held = self._held, b""
            if held:
                self._take_body(held)
            return
        self.advance()
        if self._take is not None:
            self._apply_end()

    def take_whole(self, exchange: ClientExchange, length: int) -> bytes | None:
        """Return a body of ``length`` bytes if it is complete, and release the connection."""
        held = self._held
        if len(held) < length:
            return None
        self._held = held[length:]
        self._release(exchange)
        return held[:length]

    def _take_body(self, data: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        reader = exchange.reader
        try:
            rest = reader.feed(data, self._deliver)
        except BodyError as error:
            self.fail(f"the response is invalid: {error}")
            return
        if reader.ended and self._exchange is exchange:
            # It refers to the exchange, and the connection may live long.
            del self._deliver
            self._held = rest + self._held
            self.response_complete(exchange)

    def response_complete(self, exchange: ClientExchange) -> None:
        """Release the connection, then complete the exchange.

        In this order, so that a request sent from the completion callback finds the connection
        free.
        """
        self._release(exchange)
        exchange.complete()

    def _release(self, exchange: ClientExchange) -> None:
        """End the exchange, then keep or close the connection.

        In this order, because releasing the connection may start another exchange on it.
        """
        self._exchange = None
        exchange.end()
        self._take = self._take_unexpected
        self._body_paused = False
        self.writer.producer = None
        keep = exchange.keeps_alive and not (self._held or self._input_ended or self.lost)
        self._held = b""
        if not self._reading:
            self.set_reading()
        if not exchange.request_complete:
            # An early response. The unsent rest of the request makes the connection unusable.
            self.abort()
        elif not keep:
            self.close()
        elif self.on_idle is not None:
            self.on_idle(self)

    # -- ends ----------------------------------------------------------------------------------

    def input_ended(self) -> None:
        self._end_with(Failure(ConnectionDone()))

    def connection_ended(self, reason: Failure) -> None:
        if self._closing_timer is not None:
            self._closing_timer.cancel()
            self._closing_timer = None
        self._end_with(reason)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.errback(reason)
        if self.on_lost is not None:
            self.on_lost(self)

    def _end_with(self, reason: Failure) -> None:
        if self._end is None:
            self._end = reason
        if self._user is not None:
            if self.lost and self._exchange is not None:
                self._exchange.switched_connection_ended(reason)
        elif self._exchange is None:
            self.close()
        elif not self._held:
            self._apply_end()

    def _apply_end(self) -> None:
        """End the exchange according to how the connection ended, once all data has been read."""
        exchange, reason = self._exchange, self._end
        if exchange is None or reason is None or self._held:
            return
        if not exchange.reading:
            if self._take is not None:
                self.fail("the connection was closed before a response arrived", reason)
            # Otherwise the response waits for a consumer of its body.
            return
        try:
            if not isinstance(reason.value, ConnectionDone):
                raise BodyError("the connection broke")
            exchange.reader.end_of_input()
        except BodyError as error:
            self.fail(f"the response is incomplete: {error}", reason)
        else:
            self.response_complete(exchange)

    def fail(self, text: str, reason: Failure | None = None) -> None:
        """Abort the connection and fail the exchange in progress."""
        exchange = self._exchange
        assert exchange is not None
        error = ExchangeFailed(text, unanswered=not self._response_begun)
        if reason is not None:
            if not isinstance(reason.value, ConnectionDone):
                error = ExchangeFailed(
                    f"{text}: {reason.value}", unanswered=not self._response_begun
                )
            error.__cause__ = reason.value
        exchange.end()
        self.abort()
        exchange.receiver.exchange_ended(error)
