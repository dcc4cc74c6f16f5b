"""Buffering of request bodies: a whole small one, or the start of one."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from zope.interface import implementer

from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IExchange
from yurttunnel.wire.pieces import append_piece


class BodyTooLarge(Exception):
    """A request body that exceeds the handler's limit; to be answered with ``status``."""

    status = 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the request body is longer than {max_bytes} bytes")


def read_body(exchange: IExchange, max_bytes: int) -> Deferred[bytes]:
    """Read the whole request body of ``exchange``; called once, instead of ``deliver_body``.

    ``100 Continue`` is sent to a client that expects it. Fails with :class:`BodyTooLarge` as soon
    as the body is known to exceed ``max_bytes``, and with :class:`ExchangeFailed` if the exchange
    ends before the body does. The timeout is that of the connection.
    """
    collector = _Collector(max_bytes)
    lengths = exchange.head.values(b"content-length")
    if lengths and int(lengths[0]) > max_bytes:
        collector.too_large()
        return collector.whole
    exchange.on_end(collector.exchange_ended)
    if exchange.has_body and exchange.head.values(b"expect"):
        exchange.send_informational(100)
    exchange.deliver_body(collector)
    return collector.whole


@implementer(IBodySink)
class BodyBuffer:
    """A buffer for a body without a consumer yet, complete or not."""

    def __init__(self) -> None:
        self.size = 0
        self.complete = False
        self._pieces: list[bytes] = []
        self._trailers: Fields = ()

    def write(self, data: bytes) -> None:
        self.size += len(data)
        append_piece(self._pieces, data)

    def finish(self, trailers: Fields = ()) -> None:
        self.complete = True
        self._trailers = trailers

    def forward(self, sink: IBodySink) -> None:
        """Write the buffered data to ``sink``, and finish it if the body is complete."""
        pieces, self._pieces = self._pieces, []
        if pieces:
            sink.write(b"".join(pieces))
        if self.complete:
            sink.finish(self._trailers)


@implementer(IBodySink)
class _Collector:
    def __init__(self, max_bytes: int) -> None:
        self.whole: Deferred[bytes] = Deferred()
        self._max_bytes = max_bytes
        self._size = 0
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_bytes:
            self.too_large()
        else:
            append_piece(self._pieces, data)

    def finish(self, trailers: Fields = ()) -> None:
        if not self.whole.called:
            self.whole.callback(b"".join(self._pieces))

    def too_large(self) -> None:
        self._pieces.clear()
        if not self.whole.called:
            self.whole.errback(BodyTooLarge(self._max_bytes))

    def exchange_ended(self, error: ExchangeFailed | None) -> None:
        if not self.whole.called:
            self._pieces.clear()
            self.whole.errback(
                error or ExchangeFailed("the request was answered before its body had arrived")
            )
