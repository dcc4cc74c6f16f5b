"""The seams of HTTP/1.1 here: an exchange as each side sees it, and bodies between them.

An exchange is one request with its response. Each side of it takes one body in and gives one
out, so both are shaped alike: an :class:`IBodySink` (and ``IConsumer``) for what goes out, and a
push producer that fills another sink with what comes in. A proxy joins the two by handing each
the other as its sink.

Fields are pairs of bytes in the order sent. Those that concern one connection only (RFC 9110
section 7.6.1: ``Connection``, ``Transfer-Encoding``, ``Keep-Alive``, ``Trailer``...) are the
business of the connections here, and never given by their users, except in the head of an
upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IConsumer, IProtocol, IPushProducer, ITransport
from zope.interface import Attribute, Interface

from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead, ResponseHead


class ExchangeFailed(Exception):
    """An exchange that did not come to its end; one line says why.

    ``unanswered`` is true on the client's side when no byte of an answer had come, so that the
    server may not have seen the request.
    """

    def __init__(self, text: str, unanswered: bool = False) -> None:
        super().__init__(text, unanswered)
        self.text = text
        self.unanswered = unanswered

    def __str__(self) -> str:
        """Return the line."""
        return self.text


class IBodySink(Interface):
    """Where a body goes."""

    def write(data: bytes) -> None:
        """Take the next piece of the body."""

    def finish(trailers: Fields = ()) -> None:
        """The body is complete; ``trailers`` may follow it (``SENT_IN_TRAILERS`` of ``fields``)."""


class IBodySource(IPushProducer):
    """A body that comes in; it is paused until somebody wants it."""

    has_body: bool = Attribute("`bool`: there is a body, perhaps an empty one.")

    def deliver_body(sink: IBodySink) -> None:
        """Write the body to ``sink``, then finish it (at once when there is none); called once.

        What has been read already may still be delivered after ``pauseProducing``, at most one
        read. When the body breaks off, ``sink`` is not finished: the exchange fails.
        """

    def take_whole() -> bytes | None:
        """Return the body where all of it has come already, else ``None``.

        What is returned is not delivered any more; where there is none, it still can be.
        """


class IExchange(IBodySink, IConsumer, IBodySource):
    """One request and its response, on the side that serves.

    As a body source it gives the request's body, as a sink and consumer it takes the
    response's. The order of calls is: any number of :meth:`send_informational`, one
    :meth:`send_head`, any number of ``write``, one ``finish``; or once :meth:`switch`. A
    registered producer is paused while the client does not keep up.

    After the exchange has ended all methods do nothing, so that nobody has to look first.
    """

    head: RequestHead = Attribute("`RequestHead`: the request.")
    secure: bool = Attribute("`bool`: it came by TLS.")
    transport: ITransport = Attribute(
        "`ITransport`: to see who the client is; nothing is to be written to it."
    )
    head_sent: bool = Attribute("`bool`: the final response has begun.")
    status: int = Attribute("`int`: that of the final response, 0 before it has begun.")
    failure: str = Attribute(
        "`str`: what the client was told by :meth:`fail`, or of a body that is none; else empty."
    )
    bytes_sent: int = Attribute("`int`: the length of the response's body so far.")

    def send_informational(status: int, fields: Fields = ()) -> None:
        """Send an interim response, 100 to 199 without 101; clients of HTTP/1.0 get none."""

    def send_head(status: int, fields: Fields = (), reason: bytes = b"") -> None:
        """Begin the final response.

        With one ``Content-Length`` in ``fields`` the body has that length. Without, it is sent
        in chunks, or to clients of HTTP/1.0 until the connection is closed. Responses that have
        no body (to HEAD, 204, 304) may carry ``Content-Length`` all the same. An empty
        ``reason`` becomes the usual phrase. Raises ``ValueError`` for what cannot be sent
        safely.
        """

    def respond(status: int, fields: Fields = (), body: bytes = b"") -> None:
        """Send a whole response in one write, with its ``Content-Length``."""

    def respond_from(status: int, fields: Fields, source: IBodySource, reason: bytes = b"") -> None:
        """Begin the final response, and have ``source`` fill it, paused as a producer is.

        What ``source`` has at hand goes out in one write with the head. Of what it has whole a
        ``Content-Length`` in ``fields`` has to be the length, else it is a ``ValueError``.
        """

    def fail(status: int, text: str) -> None:
        """Answer with a failure for people (:mod:`yurttunnel.http.errors`).

        After the response has begun there is nobody to tell: then this aborts.
        """

    def refuse(
        status: int,
        text: str,
        headers: Iterable[tuple[str, str]] = (),
        in_status_line: bool = False,
    ) -> None:
        """Answer with a failure as :meth:`fail` does, and close the connection.

        ``headers`` are sent, too; with ``in_status_line`` the text is also the reason in the
        status line, the only part that some clients show.
        """

    def switch(status: int, reason: bytes, fields: Fields, protocol: IProtocol) -> None:
        """Answer 101 (or 2xx to CONNECT) with ``fields``, and hand over.

        ``protocol`` gets the transport by ``makeConnection``, then all that the client sends or
        has sent behind its head. The exchange ends when that connection does.

        After a CONNECT ``protocol`` is connected only once nothing that it sends can come with the
        answer in one read of the client, and gets a transport that can end its sending direction;
        the exchange may end before that.
        """

    def abort() -> None:
        """Close the connection at once, so that what has been sent does not look complete."""

    def on_end(callback: Callable[[ExchangeFailed | None], object]) -> None:
        """Have ``callback(None)`` called once the exchange is complete, or with what ended it.

        A client that leaves is such an end. Called at once when it has ended already. Several
        callbacks are called in their order.
        """


class IRequestHandler(Interface):
    """What a server connection hands its requests to."""

    def request_received(exchange: IExchange) -> None:
        """Answer ``exchange``, now or later. What it raises is logged and answered with 500."""


class IResponseReceiver(Interface):
    """Whom a client exchange tells how it goes."""

    def informational_received(head: ResponseHead) -> None:
        """An interim response, 100 to 199 without 101, has come."""

    def response_received(head: ResponseHead) -> None:
        """The final response has begun.

        For its body call ``deliver_body`` of the exchange, now or later; when ``head.status`` is
        101 and an upgrade was asked for, call ``switch`` or ``abort``, now.
        """

    def exchange_ended(error: ExchangeFailed | None) -> None:
        """The exchange is complete (``None``) or has failed; nothing else follows."""


class IClientExchange(IBodySink, IConsumer, IBodySource):
    """One request and its response, on the side that asks.

    As a sink and consumer it takes the request's body, as a body source it gives the response's.
    Requests without a body are finished with an empty one.
    """

    def switch(protocol: IProtocol) -> None:
        """Hand the connection over to ``protocol`` after a 101, with what came behind its head."""

    def abort() -> None:
        """Give up: the connection is closed, and ``exchange_ended`` is called with an error."""
