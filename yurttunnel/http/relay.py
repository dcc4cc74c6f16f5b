"""A request that came to one connection, answered by another: the core of a reverse proxy.

What has been read from one side is written to the other in the same call. Each side is paused
while the other does not keep up, so what is held for an exchange is bounded by what the transports
buffer.

Only the beginning of a request's body is waited for: a connection is asked for once all of it is
there, or :data:`BODY_BEGINNING` bytes, or a second has passed. So small bodies, which are most,
hold nothing that others wait for while they come. What is not complete then is an upload (see
``yurttunnel.http.pool``), and passed on as it comes.

The client is told the truth: an origin that cannot be reached, does not answer or answers
nonsense is a status of 502 to 504; after the response has begun a failure cuts the connection,
so that a half is not taken for the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

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
from yurttunnel.http.request_body import BodyBeginning
from yurttunnel.http.upgrade import SplicedSide, join

_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
"""Methods that may be sent twice (RFC 9110 section 9.2.1), but not with an upgrade: by WebSocket a
command is run in a container with GET."""


class Acquire(Protocol):
    """Gets a connection to the origin, as ``ConnectionPool.take`` with its key does."""

    def __call__(
        self, *, fresh: bool, upload: bool, upgrade: bool
    ) -> Deferred[ClientConnection] | ClientConnection:
        """Return a connection; a new one if ``fresh``, for an incomplete request if ``upload``."""


Describe = Callable[[Failure], tuple[int, str]]
"""Returns the status and the sentence that tell a client why there is no connection."""


BODY_BEGINNING = 16 * 1024
"""Bytes of a request's body that are taken, give or take one read, before there is a connection."""

BODY_PATIENCE = 1.0
"""Seconds that a request's body has to come before a connection for an upload is asked for."""

UPLOAD_TIMEOUT = 60.0
"""Seconds for an origin to take more of a request's body, where nothing else bounds its time."""


class ForwardedRequest:
    """The request to send, ``Host`` included; those of ``fields`` that are for one connection are
    left out.

    The method is not CONNECT, which asks the proxy itself for a connection. What is forwarded again
    and again can be so as one object, which is written once, unless it is long.
    """

    __slots__ = ("_fields", "_target", "_written", "method")

    def __init__(self, method: bytes, target: bytes, fields: Fields) -> None:
        self.method = method
        self._target = target
        self._fields = fields
        self._written: WrittenRequest | None = None

    def written(self, has_body: bool, upgrade: bytes | None, added: Fields = ()) -> WrittenRequest:
        """Return it as it is sent, with fields that are ``added`` behind its own.

        ``upgrade`` is the protocol to which the connection may change. Raises ``ValueError`` for
        what cannot be sent safely.
        """
        written = self._without_added(has_body, upgrade)
        for name, value in added:
            written = written.with_field(name, value)
        return written

    def _without_added(self, has_body: bool, upgrade: bytes | None) -> WrittenRequest:
        usual = not has_body and upgrade is None
        if usual and self._written is not None:
            return self._written
        fields = end_to_end(self._fields)
        if upgrade is not None:
            fields += [(b"Connection", b"Upgrade"), (b"Upgrade", upgrade)]
        written = write_request(
            self.method, self._target, fields, has_body=has_body, upgrade=upgrade is not None
        )
        if usual and len(written.head) <= LONG_HEAD:
            self._written = written
        return written


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """How long a relay waits, in seconds."""

    response_timeout: float | None = None
    """From the complete request to the head of the response, and for the origin to take more of
    the body of a request; ``None`` is for ever, and :data:`UPLOAD_TIMEOUT`. A client that holds
    its body back until it is told to go on has sent a complete request in this sense."""
    linger: float = 60.0
    """For one side of an upgraded connection to take the last, and to close, after the other has
    closed; long, because data on its way to a slow client is lost when it is over."""


class Relay:
    """Forwards exchanges; one object for all that share settings."""

    def __init__(self, clock: IReactorTime, settings: RelaySettings | None = None) -> None:
        settings = settings or RelaySettings()
        self.answers: Deadlines[_Forwarding] | None = None
        self.response_timeout = timeout = settings.response_timeout
        if timeout is not None:
            self.answers = Deadlines(clock, timeout, _Forwarding.response_overdue)
        self.upload_timeout = UPLOAD_TIMEOUT if timeout is None else timeout
        self.uploads = Deadlines(clock, self.upload_timeout, _Forwarding.upload_overdue)
        self.beginnings = Deadlines(clock, BODY_PATIENCE, _Forwarding.body_is_slow)
        self.closing = Deadlines(clock, settings.linger, SplicedSide.close_overdue)

    def forward(
        self,
        exchange: IExchange,
        acquire: Acquire,
        request: ForwardedRequest,
        describe: Describe,
        origin: object = "the origin",
        patient: bool = False,
        added: Fields = (),
    ) -> None:
        """Answer ``exchange`` with what a connection from ``acquire`` answers to ``request``.

        The request's body, interim responses, trailers and upgrades are passed on. ``origin``,
        as a text, begins the sentences about what went wrong behind the connection, ``describe``
        makes those about having none, except that too many requests for a pool are told by
        itself. With ``patient`` the origin may take as long as it wants to begin its answer. Fields
        that are ``added`` are of this exchange alone.

        The request is sent a second time, on a new connection, only when it has no body, asks for
        no upgrade and has a safe method, and an old connection turned out to be closed before a
        byte of an answer.
        """
        _Forwarding(self, exchange, acquire, request, describe, origin, patient, added).begin()

    def close(self) -> None:
        """Stop the timers; the connections are closed by those who have them."""
        if self.answers is not None:
            self.answers.stop()
        self.uploads.stop()
        self.beginnings.stop()
        self.closing.stop()


@implementer(IResponseReceiver, IBodySink, IPushProducer)
class _Forwarding:
    """One exchange on its way; as a sink it takes the request's body, as a producer it gives it."""

    _log = Logger()

    def __init__(
        self,
        relay: Relay,
        exchange: IExchange,
        acquire: Acquire,
        request: ForwardedRequest,
        describe: Describe,
        origin: object,
        patient: bool,
        added: Fields,
    ) -> None:
        self._relay = relay
        self._added = added
        self._patient = patient
        self._exchange = exchange
        self._acquire = acquire
        self._request = request
        self._describe = describe
        self._origin = origin
        # Few ask for one.
        asks = b"upgrade" in exchange.head.by_name
        self._upgrade = requested_upgrade(exchange.head) if asks else None
        # What has come of the body, until there is a connection.
        self._beginning = BodyBeginning() if exchange.has_body else None
        self._acquiring: Deferred[Any] | None = None
        self._upstream: ClientExchange | None = None
        self._transport: Any = None
        self._reused = False
        self._retried = False
        self._ended = False
        # Which deadlines it is in, so that most ends look into one at most.
        self._answer_due = False
        self._upload_due = False
        self._beginning_due = False

    # -- getting a connection ------------------------------------------------------------------

    def begin(self) -> None:
        """Get a connection once there is use for it, and give up when the client does."""
        exchange = self._exchange
        exchange.on_end(self._client_ended)
        if self._ended:
            return
        if not exchange.has_body:
            self._connect(fresh=False, upload=False)
        elif exchange.head.values(b"expect"):
            # Nothing comes until the origin has asked for it.
            self._connect(fresh=False, upload=True)
        else:
            self._beginning_due = True
            self._relay.beginnings.add(self)
            exchange.deliver_body(self)

    def body_is_slow(self) -> None:
        """Go on with what there is of the body."""
        self._beginning_due = False
        self._connect(fresh=False, upload=True)

    def _body_began(self, beginning: BodyBeginning) -> None:
        """Go on if that is all of the body, or more than is to be kept."""
        if not beginning.complete:
            if beginning.size < BODY_BEGINNING:
                return
            self._exchange.pauseProducing()
        if self._beginning_due:
            self._beginning_due = False
            self._relay.beginnings.discard(self)
            self._connect(fresh=False, upload=not beginning.complete)

    def _connect(self, fresh: bool, upload: bool) -> None:
        acquiring = self._acquire(fresh=fresh, upload=upload, upgrade=self._upgrade is not None)
        # Not asked for a Deferred, which would be an abstract class to ask.
        if isinstance(acquiring, ClientConnection):
            self._connected(acquiring)
            return
        self._acquiring = acquiring
        # Neither of the two raises; mypy wants to see the Deferred used.
        _ = acquiring.addCallbacks(self._connected, self._connect_failed)

    def _connect_failed(self, failure: Failure) -> None:
        self._acquiring = None
        if self._ended:
            # Nobody is there to be told.
            return
        if isinstance(failure.value, ExchangeFailed):
            # There was a connection, but it is of no use any more.
            self.exchange_ended(failure.value)
            return
        if failure.check(PoolBusy):
            self._exchange.fail(503, f"{self._origin}: {failure.value}")
            return
        try:
            status, text = self._describe(failure)
        except Exception:
            self._defect()
        else:
            self._exchange.fail(status, text)

    def _defect(self) -> None:
        self._log.failure("Defect: an HTTP request could not be forwarded")
        self._exchange.fail(500, "the server has a defect; its log has more")

    # -- the request ---------------------------------------------------------------------------

    def _connected(self, connection: ClientConnection) -> None:
        self._acquiring = None
        if self._ended:
            # It was given in the moment in which the client left.
            connection.close()
            return
        exchange = self._exchange
        self._reused = connection.requests > 0
        self._transport = connection.transport
        try:
            written = self._request.written(exchange.has_body, self._upgrade, self._added)
            self._upstream = upstream = connection.send(written, self)
        except ExchangeFailed as error:
            self.exchange_ended(error)
            return
        except Exception:
            connection.close()
            self._defect()
            return
        if not exchange.has_body:
            self._expect_answer()
            return
        upstream.registerProducer(self, True)
        if exchange.head.values(b"expect"):
            self._beginning = None
            self._expect_answer()
            exchange.deliver_body(self)
            return
        beginning, self._beginning = self._beginning, None
        assert beginning is not None
        beginning.pass_on(self)
        if not self._upload_due:
            exchange.resumeProducing()

    def write(self, data: bytes) -> None:
        """Pass on a piece of the body, or keep it until there is a connection."""
        upstream = self._upstream
        if upstream is not None:
            self._forget_answer()
            upstream.write(data)
        elif self._beginning is not None:
            self._beginning.write(data)
            self._body_began(self._beginning)

    def finish(self, trailers: Fields = ()) -> None:
        """End the request, or keep its end until there is a connection."""
        upstream = self._upstream
        if upstream is not None:
            upstream.finish(trailers)
            self._forget_upload()
            self._expect_answer()
        elif self._beginning is not None:
            self._beginning.finish(trailers)
            self._body_began(self._beginning)

    def _expect_answer(self) -> None:
        """Bound the time for an answer; patience is for requests that are complete."""
        if self._answer_due:
            self._forget_answer()
        answers, upstream = self._relay.answers, self._upstream
        patient = self._patient and (upstream is None or upstream.request_complete)
        if answers is not None and not (patient or self._exchange.head_sent or self._ended):
            self._answer_due = True
            answers.add(self)

    def _forget_answer(self) -> None:
        answers = self._relay.answers
        if self._answer_due and answers is not None:
            self._answer_due = False
            answers.discard(self)

    def _forget_upload(self) -> None:
        if self._upload_due:
            self._upload_due = False
            self._relay.uploads.discard(self)

    def pauseProducing(self) -> None:
        """Read no more of the request for now: the origin does not keep up."""
        if not self._upload_due:
            self._upload_due = True
            self._relay.uploads.add(self)
        self._exchange.pauseProducing()

    def resumeProducing(self) -> None:
        """Read again."""
        self._forget_upload()
        self._exchange.resumeProducing()

    def stopProducing(self) -> None:
        """Read no more: the end of the upstream follows and says why."""
        self._exchange.stopProducing()

    # -- the response --------------------------------------------------------------------------

    def informational_received(self, head: ResponseHead) -> None:
        """Pass on an interim response; after 100 the client has to go on."""
        upstream = self._upstream
        if head.status == 100 and upstream is not None and not upstream.request_complete:
            self._forget_answer()
        self._exchange.send_informational(head.status, head.end_to_end())

    def response_received(self, head: ResponseHead) -> None:
        """Pass on the response, or join the connections after a 101."""
        upstream = self._upstream
        assert upstream is not None
        self._forget_answer()
        try:
            if head.status == 101:
                self._switch(head)
            else:
                self._exchange.respond_from(head.status, head.end_to_end(), upstream, head.reason)
        except Exception:
            # Whoever stands between may be anybody's code, and nobody would want the body: then
            # the end of the connection would not be told either, and the client wait for ever.
            self._defect()
            upstream.abort()

    def _switch(self, head: ResponseHead) -> None:
        upstream = self._upstream
        assert upstream is not None
        fields = head.end_to_end()
        fields.append((b"Connection", b"Upgrade"))
        fields += [(b"Upgrade", value) for value in head.values(b"upgrade")]
        client_side, origin_side = join(
            self._exchange.transport, self._transport, self._relay.closing
        )
        self._exchange.switch(101, head.reason, fields, client_side)
        upstream.switch(origin_side)
        # From here on the two sides end each other.
        self._upstream = None

    def response_overdue(self) -> None:
        """Give up an origin that does not answer."""
        self._give_up(f"no answer came within {self._relay.response_timeout:g} seconds")

    def upload_overdue(self) -> None:
        """Give up an origin that takes nothing any more, and with it a client that has left.

        While it is not read from, the end of a client is not seen.
        """
        seconds = self._relay.upload_timeout
        self._give_up(f"nothing of the request's body was taken for {seconds:g} seconds")

    def _give_up(self, text: str) -> None:
        upstream, self._upstream = self._upstream, None
        self._exchange.fail(504, f"{self._origin}: {text}")
        if upstream is not None:
            upstream.abort()

    # -- the end -------------------------------------------------------------------------------

    def exchange_ended(self, error: ExchangeFailed | None) -> None:
        """Notify the client of a failure on the origin's side, or try once more.

        Most exchanges have ended by then, with the last piece of the body.
        """
        if self._ended:
            return
        self._stop_waiting()
        self._upstream = None
        if error is None:
            return
        if self._may_retry(error):
            self._retried = True
            self._connect(fresh=True, upload=False)
        elif self._exchange.head_sent:
            self._exchange.abort()
        else:
            self._exchange.fail(502, f"{self._origin}: {error}")

    def _may_retry(self, error: ExchangeFailed) -> bool:
        return (
            error.unanswered
            and self._reused
            and not self._retried
            and not self._exchange.has_body
            and self._upgrade is None
            and self._request.method in _SAFE
        )

    def _stop_waiting(self) -> None:
        self._forget_answer()
        self._forget_upload()
        if self._beginning_due:
            self._beginning_due = False
            self._relay.beginnings.discard(self)

    def _client_ended(self, error: ExchangeFailed | None) -> None:
        """Let go of the origin: it has answered, or the client has left or got another answer."""
        self._ended = True
        self._beginning = None
        if self._answer_due or self._upload_due or self._beginning_due:
            self._stop_waiting()
        acquiring, self._acquiring = self._acquiring, None
        if acquiring is not None:
            acquiring.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()
