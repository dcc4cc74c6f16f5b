"""Requests of our own: for those who ask, and pass nothing on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.client import ClientConnection, WrittenRequest, write_request
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import ResponseHead
from yurttunnel.http.interfaces import (
    ExchangeFailed,
    IBodySink,
    IClientExchange,
    IResponseReceiver,
)


class Answer(NamedTuple):
    """A final response; ``body`` is the beginning of it where it is too long."""

    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        """The status, 200 to 599."""
        return self.head.status


def ask(
    connection: ClientConnection,
    method: bytes,
    target: bytes,
    fields: Fields,
    body: bytes = b"",
    max_body: int = 64 * 1024,
) -> Deferred[Answer]:
    """Return the answer to a request, with ``max_body`` bytes of its body at most.

    ``fields`` include ``Host``, and not the length of ``body``. Whoever asks bounds the time:
    cancelling closes the connection. Fails with :class:`ExchangeFailed`, and with ``ValueError``
    for what cannot be sent safely.
    """

    async def run() -> Answer:
        try:
            request = write_whole_request(method, target, fields, body)
        except ValueError:
            # A pool has it back only by its end.
            connection.close()
            raise
        response = await send(connection, request, body)
        beginning = bytearray()
        await response.read(lambda data: beginning.extend(data[: max_body - len(beginning)]))
        return Answer(response.head, bytes(beginning))

    return Deferred.fromCoroutine(run())


def write_whole_request(
    method: bytes, target: bytes, fields: Fields, body: bytes
) -> WrittenRequest:
    """Check and write the head of a request whose ``body`` is there; see :func:`write_request`."""
    if body:
        fields = [*fields, (b"Content-Length", b"%d" % len(body))]
    return write_request(method, target, fields)


def send(connection: ClientConnection, request: WrittenRequest, body: bytes) -> Deferred[Response]:
    """Return the response to ``request``, whose head has been written for ``body``.

    It fires when the head of the response has come, with its body still to be read. Whoever asks
    bounds the time: cancelling closes the connection. Fails with :class:`ExchangeFailed`.
    """
    response = Response()
    try:
        exchange = connection.send(request, response)
    except ExchangeFailed as error:
        return fail(error)
    return response.begin(exchange, body)


@implementer(IResponseReceiver, IBodySink)
class Response:
    """A response as it comes; see :func:`send`, which makes it."""

    head: ResponseHead

    def __init__(self) -> None:
        self._exchange: IClientExchange
        # For the head, and then for the end.
        self._waiting: Deferred[Any] = Deferred(self._cancel)
        self._take: Callable[[bytes], object] | None = None

    @property
    def status(self) -> int:
        """The status, 200 to 599."""
        return self.head.status

    @property
    def ended(self) -> bool:
        """No more of the body comes, or is wanted."""
        return self._waiting.called

    def read(self, take: Callable[[bytes], object]) -> Deferred[None]:
        """Call ``take`` with each piece of the body; return what fires at its end. Called once.

        What ``take`` raises ends the exchange, and what is returned fails with it; else it fails
        with :class:`ExchangeFailed`. Cancelling closes the connection.
        """
        ending: Deferred[None] = self._waiting
        if not ending.called:
            self._take = take
            self._exchange.deliver_body(self)
        return ending

    # -- for the exchange ----------------------------------------------------------------------

    def begin(self, exchange: IClientExchange, body: bytes) -> Deferred[Response]:
        """Send ``body``; for :func:`send`."""
        self._exchange = exchange
        beginning: Deferred[Response] = self._waiting
        exchange.write(body)
        exchange.finish()
        return beginning

    def informational_received(self, head: ResponseHead) -> None:
        """Wait on: it is not the answer."""

    def response_received(self, head: ResponseHead) -> None:
        self.head = head
        beginning, self._waiting = self._waiting, Deferred(self._cancel)
        beginning.callback(self)

    def write(self, data: bytes) -> None:
        if self._take is None:
            return
        try:
            self._take(data)
        except Exception:
            # Whatever it is: it would be lost in the transport, and whoever reads has to know.
            if not self.ended:
                self._waiting.errback(Failure())
            self._exchange.abort()

    def finish(self, trailers: Fields = ()) -> None:
        """Do nothing: the end of the exchange follows."""

    def exchange_ended(self, error: ExchangeFailed | None) -> None:
        # The connection knows of this response until the next one comes, and of its reader no more.
        self._take = None
        if self.ended:
            return
        if error is None:
            self._waiting.callback(None)
        else:
            self._waiting.errback(error)

    def _cancel(self, waiting: Deferred[Any]) -> None:
        # Before its exchange fails, which is no failure of the origin's.
        waiting.errback(CancelledError())
        self._exchange.abort()
