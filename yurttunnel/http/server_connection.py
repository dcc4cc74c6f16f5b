"""One client of a server: its requests are read one after the other, and each is answered.

Requests are answered strictly in their order: the next one is not even read before the response
to the one before is complete, and at most one read of it is held. A client that does not take its
responses is not read from either.

A client over plain TCP that ends its direction behind its request still gets its answer. One that
has left looks the same, so after ``half_closed_timeout`` the exchange is given up. Over TLS an end
is an end. While something is held an end is not read, and is looked for each
``half_closed_timeout``.
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
from yurttunnel.http.connection import HTTPConnection, all_taken, has_ended, has_hung_up
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.errors import error_response
from yurttunnel.http.exchange import ServerExchange
from yurttunnel.http.fields import keeps_alive
from yurttunnel.http.framing import request_framing
from yurttunnel.http.head import LONG_HEAD, HeadError, RequestHead, RequestHeads
from yurttunnel.http.interfaces import ExchangeFailed, IRequestHandler
from yurttunnel.http.sent_alone import SentAlone

if TYPE_CHECKING:
    from yurttunnel.http.server import ConnectionsFactory

MAX_DROPPED = 256 * 1024
"""Bytes of a request that are read and dropped after it has been answered. Closing while the
client still sends would reset the connection, and the reset can overtake the answer."""


@implementer(IHandshakeListener)
class ServerConnection(HTTPConnection):
    """One client: reads its requests one after the other, and has ``handler`` answer each."""

    handshaken = False
    """TLS is there, or there is none."""

    _log = Logger()

    def __init__(self, factory: ConnectionsFactory, handler: IRequestHandler) -> None:
        super().__init__()
        self.handler = handler
        self._factory = factory
        # What bounds the time of the state that the connection is in; those of a body and of an
        # end of the input may be over before it.
        self._deadlines: Deadlines[ServerConnection] | None = None
        self._heads = RequestHeads(factory.settings.limits)
        # What counts of a long head, until its request is over, and for whom.
        self._long_bytes = 0
        self._caller: Hashable = None
        self._exchange: ServerExchange | None = None
        # What reads the body of the exchange, once somebody wants it.
        self._body: BodyReader | None = None
        self._deliver: Callable[[bytes], object]
        self._body_complete: Callable[[], object]
        # Bytes that have come since the body was last looked at, and whether it was paused since.
        self._body_bytes = 0
        self._body_held_up = False
        self._closing = False
        self._answered = False
        self._output_ended = False
        self._dropped = 0
        # The exchange at which the end of the input was seen behind what is held.
        self._ended_behind: ServerExchange | None = None
        # The answer behind which the connection is handed over, while it goes out.
        self._sent_alone: SentAlone | None = None

    def connectionMade(self) -> None:
        """Expect the first head, over TLS after the handshake; the time for both begins."""
        self._await(self._factory.heads)
        if self.secure:
            self._factory.handshakes.begin(self)
        else:
            self._begin()

    def handshakeCompleted(self) -> None:
        """TLS is there: from now on the connection counts."""
        self._factory.handshakes.end(self)
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
            factory.tell_full()
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
        # What came with the head is not kept beyond its use.
        self._held, heads.early = heads.early, b""
        self._exchange = exchange
        try:
            self.handler.request_received(exchange)
        except Exception:
            # It is anybody's code, and the caller waits for an answer.
            self._log.failure("Defect: the handler of an HTTP request failed")
            exchange.fail(500, "the server has a defect; its log has more")

    def _count_long_head(self, size: int) -> None:
        """Count what has come of a head; raises ``HeadError`` when its caller has too much."""
        factory = self._factory
        if not self._long_bytes:
            self._caller = factory.caller_of(self.transport)
        if not factory.long_heads.has_one_for(self._caller):
            raise HeadError(
                503,
                "the server has too many long request heads, of which a caller may have as much as"
                " it leaves free; try again later",
            )
        factory.long_heads.count(self._caller, size - self._long_bytes)
        self._long_bytes = size

    def _forget_long_head(self) -> None:
        self._factory.long_heads.count(self._caller, -self._long_bytes)
        self._long_bytes = 0

    def _head_incomplete(self) -> None:
        if self._input_ended:
            self._close(True)
        elif self._deadlines is not self._factory.heads:
            self._await(self._factory.heads)

    def take_body(
        self,
        reader: BodyReader,
        deliver: Callable[[bytes], object],
        complete: Callable[[], object],
    ) -> None:
        """Read the body of the current request; for its exchange.

        ``deliver`` gets each piece, ``complete`` is called after the last.
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

    def body_asked_for(self) -> None:
        """Have the time for a body that was held back begin now; for the exchange."""
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
                # Else the last piece has been answered at once, and the next request is due.
                self._take = None
            self._held = rest + self._held
            complete()

    def _body_failed(self, status: int, text: str) -> None:
        """End an exchange whose request is not what it should be, with an answer if possible."""
        exchange = self._exchange
        assert exchange is not None
        self._forget_body()
        self._take = None
        answered = exchange.head_sent
        if not answered:
            # Noted before the end, since that is when logs and metrics look at it.
            exchange.status = status
            exchange.failure = text
        exchange.end(ExchangeFailed(text))
        if answered:
            self.abort()
        else:
            self.answer_and_close(status, text, exchange.head)

    def set_reading(self) -> None:
        """See ``HTTPConnection``; the end of a client that waits and is not read is looked for."""
        super().set_reading()
        unread = self._factory.unread
        waits = self._user is None and self._sent_alone is None and not self._closing
        if self._reading or not waits:
            unread.discard(self)
        elif self not in unread:
            unread.add(self)

    def pause_body(self) -> None:
        """Read no more for now; the time that this takes is not the client's."""
        self._body_held_up = True
        super().pause_body()

    def _forget_body(self) -> None:
        if self._body is not None:
            self._body = None
            # They have the exchange, and the connection may last.
            del self._deliver, self._body_complete
            self._body_held_up = False
            self._factory.bodies.discard(self)
        self._body_paused = False

    # -- responses: for the exchange -----------------------------------------------------------

    def persists(self, exchange: ServerExchange) -> bool:
        """Return whether another request may follow ``exchange``, whose response begins now."""
        return (
            not self._factory.draining
            and not self._factory.settings.single_request
            and (not self._input_ended or bool(self._held))
            and exchange.head.derived(keeps_alive)
        )

    def exchange_complete(self, exchange: ServerExchange, persistent: bool) -> None:
        """The response to ``exchange`` has been written; go on with the next request, or end."""
        self._exchange = None
        if self._long_bytes:
            self._forget_long_head()
        ended = self._input_ended and not self._held
        if ended or not persistent or not exchange.body_ended or self._factory.draining:
            self._close(True)
            return
        self._await(self._factory.idle)
        if not self.writer.congested:
            self._take = self._take_head
            self.advance()

    def room_made(self) -> None:
        """Read the next request: the client has taken the responses before."""
        if self._exchange is None and not self._closing and self._take is None:
            self._take = self._take_head
            self.advance()

    def switch(self, answer: bytes, protocol: IProtocol, alone: bool) -> None:
        """Send ``answer``, and hand the connection over to ``protocol``.

        ``alone`` has that wait until no read of the client can give both the answer and what
        ``protocol`` sends (:mod:`yurttunnel.http.sent_alone`); over TLS its transport then closes
        where it is asked to end its sending direction.
        """
        if not alone:
            self.writer.write(answer)
            self.hand_over(protocol, self.transport)
            return
        self.writer.release()
        # What comes before the connection is handed over is held, and looked at once.
        self._take = self._client_spoke
        transport = _ClosesWhole(self) if self.secure else self.transport
        sent = partial(self.hand_over, protocol, transport)
        self._sent_alone = SentAlone(self._factory.clock, self.transport, self.secure, answer, sent)

    def _client_spoke(self, data: bytes) -> None:
        self._take = None
        self._held = data
        # Without one the answer is being sent just now.
        if self._sent_alone is not None:
            self._sent_alone.client_spoke()

    def hand_over(self, user: IProtocol, transport: Any) -> None:
        """See ``HTTPConnection``; how the input ends is the user's business from now on."""
        if self._input_ended:
            self._factory.half_closed.discard(self)
        self._factory.unread.discard(self)
        self._sent_alone = None
        super().hand_over(user, transport)

    def close_whole(self) -> None:
        """Close after a switch, in bounded time, where only one direction can not be ended."""
        if not (self.lost or self._closing):
            self._closing = True
            self._answered = True
            self._await(self._factory.lingering)
            self.transport.loseConnection()

    def cut_off(self) -> None:
        """Make room for a newer connection; what of an answer is not taken yet counts apart."""
        single = self._factory.settings.single_request
        if self.handshaken and not self._closing and not single:
            self._close(True)
        else:
            self._await(None)
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._take = None
        self._closing = True
        self._cancel_switch()
        if not self.lost:
            self.transport.abortConnection()

    # -- the end -------------------------------------------------------------------------------

    def drain(self) -> None:
        """Close now if nothing of a request has come, else after its response."""
        if self._closing:
            # The last answer may not have been taken yet.
            return
        if self._exchange is None and not self._heads.begun and not self._held:
            if self._factory.settings.single_request:
                self.abort()
            else:
                self._close(True)

    def input_ended(self) -> None:
        """The client has ended its direction."""
        exchange = self._exchange
        factory = self._factory
        if self._closing:
            self.transport.loseConnection()
        elif exchange is None:
            if not self._held:
                self._close(True)
        elif self._body is not None and not self._held:
            exchange.end(ExchangeFailed("the client broke off its request"))
            self.abort()
        elif has_hung_up(self.transport):
            self._client_left()
        elif self not in factory.half_closed:
            factory.half_closed.add(self)

    def output_ended(self) -> None:
        """Everything has been sent."""
        self._output_ended = True

    def connection_ended(self, reason: Failure) -> None:
        """The client has left, or we have."""
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
        if self._sent_alone is not None:
            self._sent_alone.cancel()
            self._sent_alone = None

    def _client_left(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.end(ExchangeFailed("the client has closed the connection"))
        self.abort()

    def _refuse(self, status: int, text: str, head: RequestHead | None = None) -> None:
        """Answer what cannot be an exchange, and close."""
        self._factory.refused(self, status, text, head)
        self.answer_and_close(status, text, head)

    def answer_and_close(
        self,
        status: int,
        text: str,
        head: RequestHead | None,
        headers: Iterable[tuple[str, str]] = (),
        in_status_line: bool = False,
    ) -> None:
        """Answer with a failure, and close; the arguments are those of ``error_response``.

        Who does not close is waited for, so many at a time as the settings say; beyond that the
        oldest one is cut off.
        """
        if self._closing:
            return
        answer = error_response(status, text, head, headers=headers, in_status_line=in_status_line)
        if head is not None and head.method == b"HEAD":
            # With the length of the body, but without it (RFC 9110 section 9.3.2).
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        self.writer.write(answer)
        self._close(False)

    def _close(self, answered: bool) -> None:
        """Close once everything has been sent and the client has closed, too.

        ``answered`` tells that the client may have much of a proper response to take yet.
        """
        if self._closing:
            return
        factory = self._factory
        self._exchange = None
        self._closing = True
        self._answered = answered
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
            factory.closes(self)

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > MAX_DROPPED:
            self._body_paused = True

    def _await(self, deadlines: Deadlines[ServerConnection] | None) -> None:
        """Have the time of the next state begin, if it has one, and that of the last end."""
        if self._deadlines is not None:
            self._deadlines.discard(self)
        self._deadlines = deadlines
        if deadlines is not None:
            deadlines.add(self)

    # -- deadlines -----------------------------------------------------------------------------

    def head_overdue(self) -> None:
        """Turn away a client that has not sent its head in time; a stranger is told nothing."""
        if not self.handshaken:
            self._factory.handshake_overdue(self)
            self.abort()
        elif not self._heads.begun and not self._factory.settings.single_request:
            self._close(False)
        else:
            self._refuse(408, "the request head did not arrive in time")

    def idle_too_long(self) -> None:
        """Close a connection that nobody uses."""
        self._close(True)

    def body_overdue(self) -> None:
        """Give up a request whose body does not come, unless we are what it waits for."""
        exchange = self._exchange
        held_back = exchange is not None and exchange.awaits_continue
        came = self._body_bytes >= self._factory.settings.min_body_bytes
        if came or self._body_held_up or held_back:
            self._body_bytes = 0
            self._body_held_up = self._body_paused
            self._factory.bodies.add(self)
        else:
            self._body_failed(408, "the request body did not arrive in time")

    def answer_overdue(self) -> None:
        """Give up the exchange of a client that may have left; see the module's text."""
        self._client_left()

    def look_for_end(self) -> None:
        """Give up the exchange of a client that was seen to have ended its direction before.

        Only when its request has come whole: all that is held then is what it has sent too much.
        """
        exchange = self._exchange
        if exchange is not None and exchange.body_ended and has_ended(self.transport):
            if self._ended_behind is exchange:
                self._client_left()
                return
            self._ended_behind = exchange
        self._factory.unread.add(self)

    def linger_over(self) -> None:
        """Close a connection that the client does not close.

        What is in the kernel is still sent. A client that is slow to take a proper response has a
        little longer.
        """
        if self._output_ended and not self._factory.settings.single_request:
            self.transport.loseConnection()
        elif self._answered and not all_taken(self.transport):
            self._await(self._factory.stalled)
        else:
            self.abort()


def _check_expectation(head: RequestHead) -> None:
    """Refuse what is expected beyond ``100-continue`` (RFC 9110 section 10.1.1)."""
    for value in head.values(b"expect"):
        if value.lower() != b"100-continue":
            raise HeadError(417, "the only expectation that can be met is 100-continue")


class _ClosesWhole:
    """The TLS transport of ``connection``, which closes where it is to end its sending direction.

    Twisted passes ``loseWriteConnection`` on to the TCP socket below TLS, which destroys data.
    A ``close_notify`` tells the client the same, but then the connection waits for the client
    to close, too, for which its time is bounded.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._transport = connection.transport
        self.loseWriteConnection = connection.close_whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
