"""A simple client: sends requests that originate in this process rather than being proxied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.client import ClientConnection, WrittenRequest, write_request
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import ResponseHead
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IClientExchange, IResponseReceiver


class CompleteResponse(NamedTuple):
    """A final response; ``body`` is truncated if it was too long."""

    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        """The status, 200 to 599."""
        return self.head.status


def fetch(
    connection: ClientConnection,
    method: bytes,
    target: bytes,
    fields: Fields,
    body: bytes = b"",
    max_body: int = 64 * 1024,
) -> Deferred[CompleteResponse]:
    """Send a request and return its response, with at most ``max_body`` bytes of the body.

    ``fields`` include ``Host`` but not ``Content-Length``. There is no timeout; cancelling closes
    the connection. Fails with :class:`ExchangeFailed`, and with ``ValueError`` for a request that
    cannot be sent safely.
    """

    async def run() -> CompleteResponse:
        try:
            request = write_whole_request(method, target, fields, body)
        except ValueError:
            # Nothing was sent, so only closing returns the connection to its pool.
            connection.close()
            raise
        response = await send(connection, request, body)
        beginning = bytearray()
        await response.read(lambda data: beginning.extend(data[: max_body - len(beginning)]))
        return CompleteResponse(response.head, bytes(beginning))

    return Deferred.fromCoroutine(run())


def write_whole_request(
    method: bytes, target: bytes, fields: Fields, body: bytes
) -> WrittenRequest:
    """Check and format the head of a request with a complete body; see :func:`write_request`."""
    if body:
        fields = [*fields, (b"Content-Length", b"%d" % len(body))]
    return write_request(method, target, fields)


def send(connection: ClientConnection, request: WrittenRequest, body: bytes) -> Deferred[Response]:
    """Send ``request``, whose head was formatted for ``body``, and return its response.

    The ``Deferred`` fires when the response head has arrived; the body is still to be read. There
    is no timeout; cancelling closes the connection. Fails with :class:`ExchangeFailed`.
    """
    response = Response()
    try:
        exchange = connection.send(request, response)
    except ExchangeFailed as error:
        return fail(error)
    return response.begin(exchange, body)


@implementer(IResponseReceiver, IBodySink)
class Response:
    """A response that is being received, as returned by :func:`send`."""

    head: ResponseHead

    def __init__(self) -> None:
        self._exchange: IClientExchange
        # Fires with the head; then replaced by one that fires at the end of the body.
        self._waiting: Deferred[Any] = Deferred(self._cancel)
        self._take: Callable[[bytes], object] | None = None

    @property
    def status(self) -> int:
        """The status, 200 to 599."""
        return self.head.status

    @property
    def ended(self) -> bool:
        """Whether the body is complete, failed or no longer wanted."""
        return self._waiting.called

    def read(self, take: Callable[[bytes], object]) -> Deferred[None]:
        """Call ``take`` with each piece of the body; may be called once.

        Returns a ``Deferred`` that fires at the end of the body. It fails with
        :class:`ExchangeFailed`, or with what ``take`` raised, which aborts the exchange.
        Cancelling closes the connection.
        """
        ending: Deferred[None] = self._waiting
        if not ending.called:
            self._take = take
            self._exchange.deliver_body(self)
        return ending

    # -- for the exchange ----------------------------------------------------------------------

    def begin(self, exchange: IClientExchange, body: bytes) -> Deferred[Response]:
        """Send ``body`` and return the ``Deferred`` for the response head; for :func:`send`."""
        self._exchange = exchange
        beginning: Deferred[Response] = self._waiting
        exchange.write(body)
        exchange.finish()
        return beginning

    def informational_received(self, head: ResponseHead) -> None:
        """Ignore interim responses."""

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
            # The transport would swallow any exception, and the reader has to be notified.
            if not self.ended:
                self._waiting.errback(Failure())
            self._exchange.abort()

    def finish(self, trailers: Fields = ()) -> None:
        """Do nothing: ``exchange_ended`` follows."""

    def exchange_ended(self, error: ExchangeFailed | None) -> None:
        # The connection refers to this response until its next exchange; release the reader now.
        self._take = None
        if self.ended:
            return
        if error is None:
            self._waiting.callback(None)
        else:
            self._waiting.errback(error)

    def _cancel(self, waiting: Deferred[Any]) -> None:
        # Before the exchange fails, so that a cancellation is not reported as a failed exchange.
        waiting.errback(CancelledError())
        self._exchange.abort()
