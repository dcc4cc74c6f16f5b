"""One request of our own with its whole answer: for those who ask, and pass nothing on."""

from __future__ import annotations

from typing import NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from zope.interface import implementer

from yurttunnel.http.client import ClientConnection
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
    cancelling closes the connection. Fails with :class:`ExchangeFailed`.
    """
    receiver = _Receiver(max_body)
    if body:
        fields = [*fields, (b"Content-Length", b"%d" % len(body))]
    try:
        exchange = connection.request(method, target, fields, receiver, has_body=bool(body))
    except ExchangeFailed as error:
        receiver.exchange_ended(error)
        return receiver.answered
    receiver.exchange = exchange
    exchange.write(body)
    exchange.finish()
    return receiver.answered


@implementer(IResponseReceiver, IBodySink)
class _Receiver:
    exchange: IClientExchange

    def __init__(self, max_body: int) -> None:
        self.answered: Deferred[Answer] = Deferred(self._cancel)
        self._room = max_body
        self._pieces: list[bytes] = []
        self._head: ResponseHead

    def _cancel(self, answered: Deferred[Answer]) -> None:
        # Before its exchange fails, which is no failure of the origin's.
        answered.errback(CancelledError())
        self.exchange.abort()

    def informational_received(self, head: ResponseHead) -> None:
        """Wait on: it is not the answer."""

    def response_received(self, head: ResponseHead) -> None:
        self._head = head
        self.exchange.deliver_body(self)

    def write(self, data: bytes) -> None:
        if self._room:
            kept = data[: self._room]
            self._room -= len(kept)
            self._pieces.append(kept)

    def finish(self, trailers: Fields = ()) -> None:
        """Do nothing: the end of the exchange follows."""

    def exchange_ended(self, error: ExchangeFailed | None) -> None:
        if self.answered.called:
            return
        if error is None:
            self.answered.callback(Answer(self._head, b"".join(self._pieces)))
        else:
            self.answered.errback(error)
