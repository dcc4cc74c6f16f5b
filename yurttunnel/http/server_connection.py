"""The server's connection to one client: reads its requests one after the other.

Requests are handled strictly in order: the next one is not parsed before the response to the one
before is complete, and at most one read of it is held. A client that does not receive its responses
is not read from either.

A client over plain TCP that ends its sending direction after a request still gets its response. A
client that has disconnected looks the same, so the exchange is aborted after
``half_closed_timeout``. Over TLS the end of one direction ends the connection. While data is held
the socket is not read; instead it is checked for an end every ``half_closed_timeout``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHandshakeListener, IProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.body import BodyError, BodyReader
from yurttunnel.http.connection import HTTPConnection, all_acknowledged, has_ended, has_hung_up
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.errors import error_response
from yurttunnel.http.exchange import ServerExchange
from yurttunnel.http.fields import keeps_alive
from yurttunnel.http.framing import request_framing
from yurttunnel.http.head import LONG_HEAD, HeadError, RequestHead, RequestHeads
from yurttunnel.http.interfaces import ExchangeFailed, IRequestHandler
from yurttunnel.http.isolated_response import IsolatedResponse

if TYPE_CHECKING:
    from yurttunnel.http.server import ConnectionsFactory

MAX_DROPPED = 256 * 1024
"""The number of bytes of a request that are read and dropped after its response. Closing while the
client still sends would reset the connection, and the reset can overtake the response."""


@implementer(IHandshakeListener)
class ServerConnection(HTTPConnection):
    """A connection to one client, whose requests ``handler`` handles."""

    handshaken = False
    """Whether the TLS handshake, if any, is complete."""

    _log = Logger()

    def __init__(self, factory: ConnectionsFactory, handler: IRequestHandler) -> None:
        super().__init__()
        self.handler = handler
        self._factory = factory
        # The timeout of the connection's current state. The timeouts of a body and of a half-closed
        # client run in addition.
        self._deadlines: Deadlines[ServerConnection] | None = None
        self._heads = RequestHeads(factory.settings.limits)
        # The bytes of a long head that are charged, until its request has ended, and the caller.
        self._long_bytes = 0
        self._caller: Hashable = None
        self._exchange: ServerExchange | None = None
        # The reader of the request body, once it has a consumer.
        self._body: BodyReader | None = None
        self._deliver: Callable[[bytes], object]
        self._body_complete: Callable[[], object]
        # Body bytes since the last check of the body timeout, and whether it was paused since then.
        self._body_bytes = 0
        self._body_held_up = False
        self._closing = False
        self._responded = False
        # Whether a response before the current one was complete.
        self._has_responded = False
        self._output_ended = False
        self._dropped = 0
        # The exchange during which the end of the input was first seen after the held data.
        self._ended_behind: ServerExchange | None = None
        # The response after which the connection is handed over, while it is being sent.
        self._isolated_response: IsolatedResponse | None = None

    def connectionMade(self) -> None:
        """Start the timeout for the first head, which includes a TLS handshake."""
        self._await(self._factory.heads)
        if self.secure:
            self._factory.handshakes.add(self)
        else:
            self._begin()

    def handshakeCompleted(self) -> None:
        """Count the connection from now on: the TLS handshake is complete."""
        self._factory.handshakes.discard(self)
        self._begin()

    def _begin(self) -> None:
        self.handshaken = True
        factory = self._factory
        factory.connections.add(self)
        settings = factory.settings
        unread, most = len(factory.heads), settings.max_unread_heads
        if unread > most and unread - len(factory.handshakes) > most:
            factory.make_room(self, factory.heads)
        full = len(factory.connections) > settings.max_connections
        if full and not factory.make_room(self, factory.idle, factory.heads):
            factory.report_full()
            self._refuse(503, "the server has too many connections; try again later")
        else:
            self._take = self._take_head

    # -- requests ------------------------------------------------------------------------------

    def _take_head(self, data: bytes) -> None:
        heads = self._heads
        head = None
        try:
            head = heads.feed(data)
            if heads.size > LONG_HEAD:
                self._count_long_head(heads.size)
            if head is None:
                self._head_incomplete()
                return
            exchange = ServerExchange(self, head, head.derived(request_framing))
            if b"expect" in head.by_name:
                _check_expectation(head)
        except HeadError as error:
            self._refuse(error.status, error.text, head)
            return
        self._await(None)
        self._take = None
        # Cleared in the reader, so that it does not keep the data alive.
        self._held, heads.early = heads.early, b""
        self._exchange = exchange
        try:
            self.handler.request_received(exchange)
        except Exception:
            # A handler may be third-party code, and the client waits for a response.
            self._log.failure("Defect: the handler of an HTTP request failed")
            exchange.fail(500, "internal error: see the log of the server")

    def _count_long_head(self, size: int) -> None:
        """Charge the bytes of a head so far; raise ``HeadError`` if its caller has too many."""
        factory = self._factory
        if not self._long_bytes:
            self._caller = factory.caller_of(self.transport)
        if not factory.long_heads.has_room_for(self._caller):
            raise HeadError(
                503,
                "the server has too many long request heads, of which a caller may have as much as"
                " it leaves free; try again later",
            )
        factory.long_heads.add(self._caller, size - self._long_bytes)
        self._long_bytes = size

    def _forget_long_head(self) -> None:
        self._factory.long_heads.add(self._caller, -self._long_bytes)
        self._long_bytes = 0

    def _head_incomplete(self) -> None:
        if self._input_ended:
            self._close(True)
        elif self._deadlines is not self._factory.heads:
            self._await(self._factory.heads)

    def take_body(
        self, reader: BodyReader, deliver: Callable[[bytes], object], complete: Callable[[], object]
    ) -> None:
        """Read the body of the current request; called by its exchange.

        ``deliver`` is called with each piece, ``complete`` after the last.
        """
        self._body = reader
        self._deliver = deliver
        self._body_complete = complete
        self._take = self._take_body
        self._body_bytes = 0
        self._factory.bodies.add(self)
        self.advance()
        if self._input_ended and self._take is not None:
            self.input_ended()

    def body_requested(self) -> None:
        """Restart the body timeout: the client was told to send the body that it held back."""
        if self._body is not None:
            self._factory.bodies.discard(self)
            self._factory.bodies.add(self)

    def _take_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        reader = self._body
        assert reader is not None
        try:
            rest = reader.feed(data, self._deliver)
        except BodyError as error:
            self._body_failed(400, str(error))
            return
        if reader.ended and self._body is reader:
            complete = self._body_complete
            self._forget_body()
            if self._take == self._take_body:
                # Otherwise the handler has responded to the last piece, and the next head is due.
                self._take = None
            self._held = rest + self._held
            complete()

    def _body_failed(self, status: int, text: str) -> None:
        """End an exchange with an invalid request body, with an error response if possible."""
        exchange = self._exchange
        assert exchange is not None
        self._forget_body()
        self._take = None
        responded = exchange.head_sent
        if not responded:
            # Set before the end, because logs and metrics read it then.
            exchange.status = status
            exchange.failure = text
        exchange.end(ExchangeFailed(text))
        if responded:
            self.abort()
        else:
            self.respond_and_close(status, text, exchange.head)

    def set_reading(self) -> None:
        """See ``HTTPConnection``; while a waiting client is not read, check it for its end."""
        super().set_reading()
        unread = self._factory.unread
        waits = self._user is None and self._isolated_response is None and not self._closing
        if self._reading or not waits:
            unread.discard(self)
        elif self not in unread:
            unread.add(self)

    def pause_body(self) -> None:
        """Pause reading; the body timeout does not count the time until it is resumed."""
        self._body_held_up = True
        super().pause_body()

    def _forget_body(self) -> None:
        if self._body is not None:
            self._body = None
            # They refer to the exchange, and the connection may live long.
            del self._deliver, self._body_complete
            self._body_held_up = False
            self._factory.bodies.discard(self)
        self._body_paused = False

    # -- responses: called by the exchange -----------------------------------------------------

    def persists(self, exchange: ServerExchange) -> bool:
        """Return whether another request may follow ``exchange``, whose response begins now."""
        return (
            not self._factory.draining
            and not self._factory.settings.single_request
            and (not self._input_ended or bool(self._held))
            and exchange.head.derived(keeps_alive)
        )

    def exchange_complete(self, exchange: ServerExchange, persistent: bool) -> None:
        """Continue with the next request or close: the response of ``exchange`` was written."""
        self._exchange = None
        self._has_responded = True
        if self._long_bytes:
            self._forget_long_head()
        ended = self._input_ended and not self._held
        if ended or not persistent or not exchange.reader.ended or self._factory.draining:
            self._close(True)
            return
        self._await(self._factory.idle)
        if not self.writer.congested:
            self._take = self._take_head
            if self._held or not self._reading:
                self.advance()

    def room_made(self) -> None:
        """Read the next request: the client has received the previous responses."""
        if self._exchange is None and not self._closing and self._take is None:
            self._take = self._take_head
            self.advance()

    def switch(self, response: bytes, protocol: IProtocol, isolated: bool) -> None:
        """Send ``response``, and hand the connection over to ``protocol``.

        With ``isolated`` the handover waits until no read of the client can return both the
        response and data from ``protocol`` (:mod:`yurttunnel.http.isolated_response`). Over TLS the
        transport of ``protocol`` then closes the connection instead of ending the sending
        direction.
        """
        if not isolated:
            self.writer.write(response)
            self.hand_over(protocol, self.transport)
            return
        self.writer.release()
        # Data that arrives before the handover is held; it triggers one check.
        self._take = self._take_before_handover
        transport = _ClosesWhole(self) if self.secure else self.transport
        sent = partial(self.hand_over, protocol, transport)
        self._isolated_response = IsolatedResponse(
            self._factory.clock, self.transport, self.secure, response, sent
        )

    def _take_before_handover(self, data: bytes) -> None:
        self._take = None
        self._held = data
        # It is None while its constructor sends the response.
        if self._isolated_response is not None:
            self._isolated_response.data_received()

    def hand_over(self, user: IProtocol, transport: Any) -> None:
        """See ``HTTPConnection``; ``user`` handles the end of the input from now on."""
        if self._input_ended:
            self._factory.half_closed.discard(self)
        if not self._reading:
            self._factory.unread.discard(self)
        self._isolated_response = None
        super().hand_over(user, transport)

    def close_whole(self) -> None:
        """Close after a switch, with a timeout, where one direction cannot be ended isolated."""
        if not (self.lost or self._closing):
            self._closing = True
            self._responded = True
            self._await(self._factory.lingering)
            self.transport.loseConnection()

    def cut_off(self) -> None:
        """Close to make room for a newer connection; a response in transit is still sent."""
        single = self._factory.settings.single_request
        if self.handshaken and not self._closing and not single:
            self._close(True)
        else:
            self._await(None)
            self.abort()

    def break_off(self, needs_reset: bool) -> None:
        """End the connection in the middle of an exchange.

        A reset would lose what a client that sends requests ahead has not read of the responses
        before. Unless it ``needs_reset``, the connection is then closed instead.
        """
        if self._has_responded and not needs_reset and not all_acknowledged(self.transport):
            # It may still have to receive much of them.
            self._close(True)
        else:
            self.abort()

    def abort(self) -> None:
        """Abort the connection."""
        self._take = None
        self._closing = True
        self._cancel_switch()
        if not self.lost:
            self.transport.abortConnection()

    # -- the end -------------------------------------------------------------------------------

    def drain(self) -> None:
        """Close now if no part of a request has arrived, else after its response."""
        if self._closing:
            # The client may not have received the last response yet.
            return
        if self._exchange is None and not self._heads.begun and not self._held:
            if self._factory.settings.single_request:
                self.abort()
            else:
                self._close(True)

    def input_ended(self) -> None:
        exchange = self._exchange
        factory = self._factory
        if self._closing:
            self.transport.loseConnection()
        elif exchange is None:
            if not self._held:
                self._close(True)
        elif self._body is not None and not self._held:
            exchange.end(ExchangeFailed("the client ended its request early"))
            self.abort()
        elif has_hung_up(self.transport):
            self._client_disconnected()
        elif self not in factory.half_closed:
            factory.half_closed.add(self)

    def output_ended(self) -> None:
        """Note that everything has been sent."""
        self._output_ended = True

    def connection_ended(self, reason: Failure) -> None:
        self._take = None
        self._held = b""
        self._closing = True
        exchange, self._exchange = self._exchange, None
        if not self.handshaken:
            self._factory.handshake_failed(self, reason)
        self._cancel_switch()
        self._forget_body()
        self._await(None)
        if self._long_bytes:
            self._forget_long_head()
        if self._input_ended:
            self._factory.half_closed.discard(self)
        if not self._reading:
            self._factory.unread.discard(self)
        self._ended_behind = None
        self._factory.forget(self)
        if exchange is None:
            return
        if self._user is not None and isinstance(reason.value, ConnectionDone):
            exchange.end(None)
        else:
            error = ExchangeFailed("the client has closed the connection")
            error.__cause__ = reason.value
            exchange.end(error)

    def _cancel_switch(self) -> None:
        if self._isolated_response is not None:
            self._isolated_response.cancel()
            self._isolated_response = None

    def _client_disconnected(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.end(ExchangeFailed("the client has closed the connection"))
        self.abort()

    def _refuse(self, status: int, text: str, head: RequestHead | None = None) -> None:
        """Reject a request without an exchange, and close."""
        self._factory.refused(self, status, text, head)
        self.respond_and_close(status, text, head)

    def respond_and_close(
        self,
        status: int,
        text: str,
        head: RequestHead | None,
        headers: Iterable[tuple[str, str]] = (),
        in_status_line: bool = False,
    ) -> None:
        """Send an error response and close; the arguments are those of ``error_response``.

        The server waits for the client to close. ``max_lingering`` connections may wait so; above
        that the oldest is cut off.
        """
        if self._closing:
            return
        response = error_response(
            status, text, head, headers=headers, in_status_line=in_status_line
        )
        if head is not None and head.method == b"HEAD":
            # The length of the body, but not the body (RFC 9110 section 9.3.2).
            response = response[: response.index(b"\r\n\r\n") + 4]
        self.writer.write(response)
        self._close(False)

    def _close(self, responded: bool) -> None:
        """Close once everything has been sent and the client has closed too.

        ``responded`` is true if the client may still have to receive much of a normal response.
        """
        if self._closing:
            return
        factory = self._factory
        self._exchange = None
        self._closing = True
        self._responded = responded
        self._take = self._drop
        self._held = b""
        self._heads.forget()
        if self._long_bytes:
            self._forget_long_head()
        self._await(factory.lingering)
        if self._input_ended:
            factory.half_closed.discard(self)
        self._forget_body()
        self.writer.release()
        self.set_reading()
        if self.secure or self._input_ended:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()
        if not self.lost:
            factory.begin_closing(self)

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > MAX_DROPPED:
            self._body_paused = True

    def _await(self, deadlines: Deadlines[ServerConnection] | None) -> None:
        """Cancel the timeout of the previous state, and start that of the next, if any."""
        if self._deadlines is not None:
            self._deadlines.discard(self)
        self._deadlines = deadlines
        if deadlines is not None:
            deadlines.add(self)

    # -- deadlines -----------------------------------------------------------------------------

    def head_overdue(self) -> None:
        """Close: the head or the handshake timed out; respond 408 only to a partial head.

        With ``single_request`` a client that has sent nothing gets the response, too.
        """
        if not self.handshaken:
            self._factory.handshake_overdue(self)
            self.abort()
        elif not self._heads.begun and not self._factory.settings.single_request:
            self._close(False)
        else:
            self._refuse(408, "the request head did not arrive in time")

    def idle_too_long(self) -> None:
        """Close an idle connection."""
        self._close(True)

    def body_overdue(self) -> None:
        """Reject a slow request body, unless the client was paused or waits for a 100."""
        exchange = self._exchange
        held_back = exchange is not None and exchange.awaits_continue
        came = self._body_bytes >= self._factory.settings.min_body_bytes
        if came or self._body_held_up or held_back:
            self._body_bytes = 0
            self._body_held_up = self._body_paused
            self._factory.bodies.add(self)
        else:
            self._body_failed(408, "the request body did not arrive in time")

    def response_overdue(self) -> None:
        """Abort the exchange of a client that may have disconnected; see the module docstring."""
        self._client_disconnected()

    def check_for_end(self) -> None:
        """Abort the exchange if two checks have found the client's sending direction ended.

        Only for a complete request: then the held data belongs to the next one.
        """
        exchange = self._exchange
        if exchange is not None and exchange.reader.ended and has_ended(self.transport):
            if self._ended_behind is exchange:
                self._client_disconnected()
                return
            self._ended_behind = exchange
        self._factory.unread.add(self)

    def linger_over(self) -> None:
        """Close a connection that the client does not close.

        The kernel still sends what it has. A client that is slow to receive a normal response gets
        a longer timeout.
        """
        if self._output_ended and not self._factory.settings.single_request:
            self.transport.loseConnection()
        elif self._responded and not all_acknowledged(self.transport):
            self._await(self._factory.stalled)
        else:
            self.abort()


def _check_expectation(head: RequestHead) -> None:
    """Reject expectations other than ``100-continue`` (RFC 9110 section 10.1.1)."""
    for value in head.values(b"expect"):
        if value.lower() != b"100-continue":
            raise HeadError(417, "the only expectation that can be met is 100-continue")


class _ClosesWhole:
    """The TLS transport of ``connection``, which closes instead of ending its sending direction.

    Twisted passes ``loseWriteConnection`` on to the TCP socket below TLS, which destroys data.
    ``close_notify`` has the same meaning for the client. The connection then waits for the client
    to close too, with a timeout.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._transport = connection.transport
        self.loseWriteConnection = connection.close_whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
