"""The interfaces of the HTTP/1.1 code: an exchange on each side, and the bodies between them.

An exchange is one request with its response. Each side of it receives one body and sends one, so
both have the same shape: an :class:`IBodySink` (and ``IConsumer``) for the outgoing body, and a
push producer that writes the incoming body to another sink. A proxy connects the two by passing
each to the other as its sink.

Fields are pairs of bytes in the order sent. The connections add the hop-by-hop fields (RFC 9110
section 7.6.1: ``Connection``, ``Transfer-Encoding``, ``Keep-Alive``, ``Trailer``...) themselves;
callers never pass them, except in the head of an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IConsumer, IProtocol, IPushProducer, ITransport
from zope.interface import Attribute, Interface

from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead, ResponseHead


class ExchangeFailed(Exception):
    """An exchange that did not complete; the message says why in one line.

    ``unanswered`` is true on the client side if no byte of a response had arrived, so the server
    may not have seen the request.
    """

    def __init__(self, text: str, unanswered: bool = False) -> None:
        super().__init__(text, unanswered)
        self.text = text
        self.unanswered = unanswered

    def __str__(self) -> str:
        """Return the message."""
        return self.text


class IBodySink(Interface):
    """A destination for a body."""

    def write(data: bytes) -> None:
        """Take the next piece of the body."""

    def finish(trailers: Fields = ()) -> None:
        """End the body; ``trailers`` may follow it (``SENT_IN_TRAILERS`` of ``fields``)."""


class IBodySource(IPushProducer):
    """An incoming body, paused until it has a consumer."""

    has_body: bool = Attribute("`bool`: whether there is a body, which may be empty.")

    def deliver_body(sink: IBodySink) -> None:
        """Write the body to ``sink``, then finish it (at once if there is no body); called once.

        Data that was read already, at most one read, may still be delivered after
        ``pauseProducing``. If the body is truncated, ``sink`` is not finished: the exchange fails.
        """

    def take_whole() -> bytes | None:
        """Return the body if all of it has arrived already, else ``None``.

        After it has returned the body, ``deliver_body`` must not be called.
        """


class IExchange(IBodySink, IConsumer, IBodySource):
    """One request and its response, on the server side.

    As a body source it provides the request body; as a sink and consumer it accepts the response
    body. The order of calls is: any number of :meth:`send_informational`, one :meth:`send_head`,
    any number of ``write``, one ``finish``; or one :meth:`switch`. A registered producer is paused
    while the client does not keep up.

    After the exchange has ended all methods do nothing, so callers need not check first.
    """

    head: RequestHead = Attribute("`RequestHead`: the head of the request.")
    secure: bool = Attribute("`bool`: whether the request arrived over TLS.")
    transport: ITransport = Attribute(
        "`ITransport`: identifies the client; must not be written to."
    )
    head_sent: bool = Attribute("`bool`: whether the final response has begun.")
    status: int = Attribute("`int`: the status of the final response, 0 before it has begun.")
    failure: str = Attribute(
        "`str`: the message of the error response by :meth:`fail`, or for an invalid request body;"
        " otherwise empty."
    )
    bytes_sent: int = Attribute("`int`: the length of the response body so far.")

    def send_informational(status: int, fields: Fields = ()) -> None:
        """Send an interim response, 100 to 199 except 101; ignored for HTTP/1.0 clients."""

    def send_head(status: int, fields: Fields = (), reason: bytes = b"") -> None:
        """Begin the final response.

        With one ``Content-Length`` in ``fields`` the body has that length. Without one it is sent
        chunked, or for HTTP/1.0 clients until the connection is closed. Responses without a body
        (to HEAD, 204, 304) may still have a ``Content-Length``. An empty ``reason`` becomes the
        standard phrase. Raises ``ValueError`` for a head that cannot be sent safely.
        """

    def respond(status: int, fields: Fields = (), body: bytes = b"") -> None:
        """Send a complete response in one write, with its ``Content-Length``."""

    def respond_from(status: int, fields: Fields, source: IBodySource, reason: bytes = b"") -> None:
        """Begin the final response, and register ``source`` as the producer of its body.

        Data that ``source`` has already is sent in one write with the head. Raises ``ValueError``
        if ``source`` has the whole body and its length differs from ``Content-Length`` in
        ``fields``.
        """

    def fail(status: int, text: str) -> None:
        """Send an error response (:mod:`yurttunnel.http.errors`).

        If the response has begun already, this aborts the exchange.
        """

    def refuse(
        status: int,
        text: str,
        headers: Iterable[tuple[str, str]] = (),
        in_status_line: bool = False,
    ) -> None:
        """Send an error response as :meth:`fail` does, and close the connection.

        ``headers`` are additional fields. With ``in_status_line`` the text is also the reason
        phrase of the status line, the only part that some clients show.
        """

    def switch(status: int, reason: bytes, fields: Fields, protocol: IProtocol) -> None:
        """Respond 101 (or 2xx to CONNECT) with ``fields``, and hand the connection over.

        ``protocol`` gets the transport by ``makeConnection``, then everything that the client sent
        after its head. The exchange ends when the connection does.

        After a CONNECT ``protocol`` is connected only once the client can no longer receive its
        data and the response in one read, and its transport can end the sending direction; the
        exchange may end before that.
        """

    def abort() -> None:
        """Abort the connection, so that a partial response does not look complete."""

    def on_end(callback: Callable[[ExchangeFailed | None], object]) -> None:
        """Register a callback for the end: with ``None`` on completion, or with the error.

        A client that disconnects is an error. If the exchange has ended already, the callback is
        called at once. Several callbacks are called in the order of registration.
        """


class IRequestHandler(Interface):
    """A handler of the requests on a server connection."""

    def request_received(exchange: IExchange) -> None:
        """Respond to ``exchange``, now or later; an exception is logged and answered with 500."""


class IResponseReceiver(Interface):
    """The receiver of the events of a client exchange."""

    def informational_received(head: ResponseHead) -> None:
        """Handle an interim response, 100 to 199 except 101."""

    def response_received(head: ResponseHead) -> None:
        """Handle the head of the final response.

        To read the body, call ``deliver_body`` of the exchange, now or later. If ``head.status`` is
        101, which only comes after a request with an upgrade, call ``switch`` or ``abort`` now.
        """

    def exchange_ended(error: ExchangeFailed | None) -> None:
        """Handle the end of the exchange, ``None`` on success; no other event follows."""


class IClientExchange(IBodySink, IConsumer, IBodySource):
    """One request and its response, on the client side.

    As a sink and consumer it accepts the request body; as a body source it provides the response
    body. For a request without a body, ``finish`` may be called but need not be.
    """

    def switch(protocol: IProtocol) -> None:
        """Hand the connection over to ``protocol`` after a 101, with any data after its head."""

    def abort() -> None:
        """Abort the exchange: close the connection and call ``exchange_ended`` with an error."""
