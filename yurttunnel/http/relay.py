"""The core of a reverse proxy: forwards a request to an upstream connection, and its response back.

Data read from one side is written to the other in the same call. Each side is paused while the
other does not keep up, so the buffers of the transports limit the memory of an exchange.

Only the start of a request body is buffered. An upstream connection is acquired once the body is
complete, :data:`BODY_START` bytes have arrived, or a second has passed. So small bodies, which
are most, occupy no connection while they arrive. A body that is still incomplete then is an upload
(see ``yurttunnel.http.pool``), and is forwarded as it arrives.

Failures are reported to the client: an origin that is unreachable, does not respond or sends an
invalid response results in a status of 502 to 504. After the response has begun, a failure aborts
the connection, so that a truncated response is not taken for a complete one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.client import ClientConnection, WrittenRequest, write_request
from yurttunnel.http.client_exchange import ClientExchange
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.fields import Fields, end_to_end, requested_upgrade
from yurttunnel.http.head import LONG_HEAD, ResponseHead
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IExchange, IResponseReceiver
from yurttunnel.http.pool import PoolBusy
from yurttunnel.http.request_body import BodyBuffer
from yurttunnel.http.upgrade import SplicedSide, join

_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
"""Safe methods, which may be retried (RFC 9110 section 9.2.1), except with an upgrade: over
WebSocket, GET runs a command in a container."""


class Acquire(Protocol):
    """A function that returns a connection to an origin, as ``ConnectionPool.acquire`` does."""

    def __call__(
        self, *, fresh: bool, upload: bool, upgrade: bool
    ) -> Deferred[ClientConnection] | ClientConnection:
        """Return a connection; a new one if ``fresh``, for an incomplete request if ``upload``."""


BODY_START = 16 * 1024
"""Bytes of a request body that are buffered, plus at most one read, before connecting."""

BODY_START_TIMEOUT = 1.0
"""Seconds to wait for a complete request body before a connection for an upload is acquired."""

UPLOAD_TIMEOUT = 60.0
"""Seconds for an origin to accept more of a request body, if there is no response timeout."""


class ForwardedRequest:
    """The request to send upstream, with ``Host``; hop-by-hop ``fields`` are removed.

    The method is not CONNECT, which is addressed to the proxy itself. One object can be forwarded
    many times; it is serialized once, unless its head is long.
    """

    __slots__ = ("_fields", "_target", "_written", "method")

    def __init__(self, method: bytes, target: bytes, fields: Fields) -> None:
        self.method = method
        self._target = target
        self._fields = fields
        self._written: WrittenRequest | None = None

    def written(self, has_body: bool, upgrade: bytes | None, added: Fields = ()) -> WrittenRequest:
        """Return the serialized request, with the fields in ``added`` after its own.

        ``upgrade`` is the value of ``Upgrade``, if any. Raises ``ValueError`` for a request that
        cannot be sent safely.
        """
        plain = not has_body and upgrade is None
        written = self._written if plain else None
        if written is None:
            written = self._write(has_body, upgrade)
            if plain and len(written.head) <= LONG_HEAD:
                self._written = written
        for name, value in added:
            written = written.with_field(name, value)
        return written

    def _write(self, has_body: bool, upgrade: bytes | None) -> WrittenRequest:
        fields = end_to_end(self._fields)
        if upgrade is not None:
            fields += [(b"Connection", b"Upgrade"), (b"Upgrade", upgrade)]
        return write_request(
            self.method, self._target, fields, has_body=has_body, upgrade=upgrade is not None
        )


class RelaySettings(NamedTuple):
    """The timeouts of a relay, in seconds."""

    response_timeout: float | None = None
    """The time from the complete request to the response head, and for the origin to accept more
    of the request body. ``None`` means no timeout for the former, and :data:`UPLOAD_TIMEOUT` for
    the latter. A request that waits for ``100 Continue`` counts as complete."""
    linger: float = 60.0
    """The time for one side of an upgraded connection to receive the remaining data and to close,
    after the other has closed. It is long, because a slow client loses the rest when it is over."""


class Relay:
    """The settings and the timers of all forwarded exchanges that share them."""

    def __init__(self, clock: IReactorTime, settings: RelaySettings | None = None) -> None:
        settings = settings or RelaySettings()
        self.responses: Deadlines[Forwarding] | None = None
        self.response_timeout = timeout = settings.response_timeout
        if timeout is not None:
            self.responses = Deadlines(clock, timeout, Forwarding.response_overdue)
        self.upload_timeout = UPLOAD_TIMEOUT if timeout is None else timeout
        self.uploads = Deadlines(clock, self.upload_timeout, Forwarding.upload_overdue)
        self.body_starts = Deadlines(clock, BODY_START_TIMEOUT, Forwarding.body_is_slow)
        self.closing = Deadlines(clock, settings.linger, SplicedSide.close_overdue)

    def close(self) -> None:
        """Stop the timers; the owners of the connections close them."""
        if self.responses is not None:
            self.responses.stop()
        self.uploads.stop()
        self.body_starts.stop()
        self.closing.stop()


@implementer(IResponseReceiver, IBodySink, IPushProducer)
class Forwarding:
    """One exchange being forwarded; the sink and the upstream's producer of the request body.

    The request body, interim responses, trailers and upgrades are forwarded, too. With
    ``long_running`` there is no timeout for the response head. The request is retried, once and on
    a new connection, only if it has a safe method, no body and no upgrade, and a reused connection
    was closed before the first byte of a response.

    Subclasses define how to connect (``acquire``, ``describe``), and set ``request`` and ``origin``
    before :meth:`start`. They may override what happens to the exchange: ``respond``, ``switch``,
    ``fail`` and ``abort``, ``deliver_body`` and ``pause_body``. After a failure, :meth:`start`
    sends the request again.
    """

    request: ForwardedRequest
    """The request, without ``added``."""
    origin: object
    """The origin, whose text begins error messages."""
    added: Fields = ()
    """The fields that are sent for this exchange only."""
    _log = Logger()
    # The start of the body, buffered until there is a connection.
    _body_start: BodyBuffer | None = None
    _acquiring: Deferred[Any] | None = None
    _upstream: ClientExchange | None = None
    _transport: Any = None
    _reused = False
    _retried = False
    _ended = False
    # Which deadlines are pending, so that most exchanges look up at most one when they end.
    _response_due = False
    _upload_due = False
    _body_start_due = False

    def __init__(self, relay: Relay, exchange: IExchange, long_running: bool) -> None:
        self.exchange = exchange
        self._relay = relay
        self.long_running = long_running
        # Checked first because few requests have the field.
        asks = b"upgrade" in exchange.head.by_name
        self._upgrade = requested_upgrade(exchange.head) if asks else None

    # -- what subclasses define or change ------------------------------------------------------

    def acquire(
        self, *, fresh: bool, upload: bool, upgrade: bool
    ) -> Deferred[ClientConnection] | ClientConnection:
        """Return a connection, as :class:`Acquire` does."""
        raise NotImplementedError

    def describe(self, failure: Failure) -> tuple[int, str]:
        """Return the status and the message for a failed connection, except for a busy pool."""
        raise NotImplementedError

    def respond(self, head: ResponseHead, upstream: ClientExchange) -> None:
        """Send the response with ``head``, whose body is that of ``upstream``."""
        self.exchange.respond_from(head.status, head.end_to_end(), upstream, head.reason)

    def fail(self, status: int, text: str) -> None:
        """Send an error response: the attempt has failed."""
        self.exchange.fail(status, text)

    def abort(self) -> None:
        """Abort the exchange: the response that has begun is incomplete."""
        self.exchange.abort()

    def deliver_body(self) -> None:
        """Deliver the request body to this object."""
        self.exchange.deliver_body(self)

    def pause_body(self) -> None:
        """Pause the request body."""
        self.exchange.pauseProducing()

    # -- getting a connection ------------------------------------------------------------------

    def begin(self) -> None:
        """Start, and stop when the exchange ends, for example because the client disconnects."""
        self.exchange.on_end(self.client_ended)
        if not self._ended:
            self.start()

    def start(self) -> None:
        """Acquire a connection once it can be used, and send the request."""
        self._retried = False
        exchange = self.exchange
        if not exchange.has_body:
            self._connect(fresh=False, upload=False)
            return
        self._body_start = BodyBuffer()
        if exchange.head.values(b"expect"):
            # The client sends no body until the origin has responded 100.
            self._connect(fresh=False, upload=True)
        else:
            self._body_start_due = True
            self._relay.body_starts.add(self)
            self.deliver_body()

    def body_is_slow(self) -> None:
        """Connect with an incomplete body: its time is over."""
        self._body_start_due = False
        self._connect(fresh=False, upload=True)

    def _body_began(self, buffer: BodyBuffer) -> None:
        """Connect if the body is complete, or the buffer is full."""
        if not buffer.complete:
            if buffer.size < BODY_START:
                return
            self.pause_body()
        if self._body_start_due:
            self._body_start_due = False
            self._relay.body_starts.discard(self)
            self._connect(fresh=False, upload=not buffer.complete)

    def _connect(self, fresh: bool, upload: bool) -> None:
        acquiring = self.acquire(fresh=fresh, upload=upload, upgrade=self._upgrade is not None)
        # Not isinstance(acquiring, Deferred): that is an abstract class, whose check is slow.
        if isinstance(acquiring, ClientConnection):
            self._connected(acquiring)
            return
        self._acquiring = acquiring
        # Neither callback raises; assigned to satisfy mypy.
        _ = acquiring.addCallbacks(self._acquired, self._connect_failed)

    def _acquired(self, connection: ClientConnection) -> None:
        if self._acquiring is None:
            # It was cancelled in the moment in which the connection was acquired.
            connection.close()
            return
        self._acquiring = None
        self._connected(connection)

    def _connect_failed(self, failure: Failure) -> None:
        if self._acquiring is None:
            # It was cancelled, for example because the client has disconnected.
            return
        self._acquiring = None
        if isinstance(failure.value, ExchangeFailed):
            # There was a connection, but it was closed at once.
            self.exchange_ended(failure.value)
            return
        if failure.check(PoolBusy):
            self.fail(503, f"{self.origin}: {failure.value}")
            return
        try:
            status, text = self.describe(failure)
        except Exception:
            self._defect()
        else:
            self.fail(status, text)

    def _defect(self) -> None:
        self._log.failure("Defect: an HTTP request could not be forwarded")
        self.fail(500, "internal error: see the log of the server")

    # -- the request ---------------------------------------------------------------------------

    def _connected(self, connection: ClientConnection) -> None:
        exchange = self.exchange
        self._reused = connection.requests > 0
        self._transport = connection.transport
        try:
            written = self.request.written(exchange.has_body, self._upgrade, self.added)
            self._upstream = upstream = connection.send(written, self)
        except ExchangeFailed as error:
            self.exchange_ended(error)
            return
        except Exception:
            connection.close()
            self._defect()
            return
        if not exchange.has_body:
            self._start_response_timeout()
            return
        upstream.registerProducer(self, True)
        if exchange.head.values(b"expect"):
            self._body_start = None
            self._start_response_timeout()
            self.deliver_body()
            return
        buffer, self._body_start = self._body_start, None
        assert buffer is not None
        buffer.forward(self)
        if not self._upload_due:
            exchange.resumeProducing()

    def write(self, data: bytes) -> None:
        """Forward a piece of the request body, or buffer it until there is a connection."""
        upstream = self._upstream
        if upstream is not None:
            self._cancel_response_timeout()
            upstream.write(data)
        elif self._body_start is not None:
            self._body_start.write(data)
            self._body_began(self._body_start)

    def finish(self, trailers: Fields = ()) -> None:
        """End the request body, or note its end until there is a connection."""
        upstream = self._upstream
        if upstream is not None:
            upstream.finish(trailers)
            self._cancel_upload_timeout()
            self._start_response_timeout()
        elif self._body_start is not None:
            self._body_start.finish(trailers)
            self._body_began(self._body_start)

    def _start_response_timeout(self) -> None:
        """Start the response timeout; ``long_running`` applies to complete requests only."""
        if self._response_due:
            self._cancel_response_timeout()
        responses, upstream = self._relay.responses, self._upstream
        long_running = self.long_running and (upstream is None or upstream.request_complete)
        if responses is not None and not (long_running or self.exchange.head_sent or self._ended):
            self._response_due = True
            responses.add(self)

    def _cancel_response_timeout(self) -> None:
        responses = self._relay.responses
        if self._response_due and responses is not None:
            self._response_due = False
            responses.discard(self)

    def _cancel_upload_timeout(self) -> None:
        if self._upload_due:
            self._upload_due = False
            self._relay.uploads.discard(self)

    def pauseProducing(self) -> None:
        """Pause the request body: the origin does not keep up."""
        if not self._upload_due:
            self._upload_due = True
            self._relay.uploads.add(self)
        self.pause_body()

    def resumeProducing(self) -> None:
        self._cancel_upload_timeout()
        self.exchange.resumeProducing()

    def stopProducing(self) -> None:
        """Stop the request body; the end of the upstream exchange follows with the reason."""
        self.exchange.stopProducing()

    # -- the response --------------------------------------------------------------------------

    def informational_received(self, head: ResponseHead) -> None:
        """Forward an interim response; after 100 the client has to send its body."""
        upstream = self._upstream
        if head.status == 100 and upstream is not None and not upstream.request_complete:
            self._cancel_response_timeout()
        self.exchange.send_informational(head.status, head.end_to_end())

    def response_received(self, head: ResponseHead) -> None:
        """Forward the response, or join the connections after a 101."""
        upstream = self._upstream
        assert upstream is not None
        self._cancel_response_timeout()
        try:
            if head.status == 101:
                self.switch(head)
            else:
                self.respond(head, upstream)
        except Exception:
            # A middleware may be third-party code. Without a consumer of the body, the end of the
            # connection would not be noticed either, and the client would wait forever.
            self._defect()
            upstream.abort()

    def switch(self, head: ResponseHead) -> None:
        """Join the connections after a 101."""
        upstream = self._upstream
        assert upstream is not None
        fields = head.end_to_end()
        fields.append((b"Connection", b"Upgrade"))
        fields += [(b"Upgrade", value) for value in head.values(b"upgrade")]
        client_side, origin_side = join(
            self.exchange.transport, self._transport, self._relay.closing
        )
        self.exchange.switch(101, head.reason, fields, client_side)
        upstream.switch(origin_side)
        # From now on each side ends the other.
        self._upstream = None

    def response_overdue(self) -> None:
        """Abort: the origin has not responded in time."""
        self._time_out(f"no response within {self._relay.response_timeout:g} seconds")

    def upload_overdue(self) -> None:
        """Abort: the origin no longer accepts the request body.

        This also frees a client that has disconnected, which is not noticed while it is paused.
        """
        seconds = self._relay.upload_timeout
        self._time_out(f"no data of the request body was accepted for {seconds:g} seconds")

    def _time_out(self, text: str) -> None:
        self.stop()
        self.fail(504, f"{self.origin}: {text}")

    # -- the end -------------------------------------------------------------------------------

    def exchange_ended(self, error: ExchangeFailed | None) -> None:
        """Report a failure of the origin to the client, or retry.

        Most exchanges have ended by then, with the last piece of the body.
        """
        if self._ended:
            return
        self._cancel_timeouts()
        self._upstream = None
        if error is None:
            return
        if self._may_retry(error):
            self._retried = True
            self._connect(fresh=True, upload=False)
        elif self.exchange.head_sent:
            self.abort()
        else:
            self.fail(502, f"{self.origin}: {error}")

    def _may_retry(self, error: ExchangeFailed) -> bool:
        return (
            error.unanswered
            and self._reused
            and not self._retried
            and not self.exchange.has_body
            and self._upgrade is None
            and self.request.method in _SAFE
        )

    def _cancel_timeouts(self) -> None:
        self._cancel_response_timeout()
        self._cancel_upload_timeout()
        if self._body_start_due:
            self._body_start_due = False
            self._relay.body_starts.discard(self)

    def client_ended(self, error: ExchangeFailed | None) -> None:
        """Stop: the exchange with the client has ended."""
        self._ended = True
        self.stop()

    def stop(self) -> None:
        """Release the upstream connection, or stop acquiring it."""
        self._body_start = None
        if self._response_due or self._upload_due or self._body_start_due:
            self._cancel_timeouts()
        acquiring, self._acquiring = self._acquiring, None
        if acquiring is not None:
            acquiring.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.cancel()
