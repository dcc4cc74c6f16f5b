"""Request bodies that can be delivered more than once if they are small."""

from __future__ import annotations

from zope.interface import implementer

from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import IBodySink, IExchange
from yurttunnel.wire.pieces import append_piece


@implementer(IBodySink)
class RepeatableBody:
    """Forwards the body of ``exchange``, and stores it as long as it has at most ``max_size``
    bytes."""

    def __init__(self, exchange: IExchange, max_size: int) -> None:
        self._exchange = exchange
        self._max_size = max_size
        self._pieces: list[bytes] | None = []
        self._size = 0
        self._complete = False
        self.begun = False
        """Whether delivery has begun."""
        self.paused = False
        """Whether the current receiver has paused the body."""
        self._sink: IBodySink

    @property
    def whole(self) -> bytes | None:
        """The body, ``None`` if it is incomplete or too long."""
        if self._pieces is None or not self._complete:
            return None
        return b"".join(self._pieces)

    @property
    def repeatable(self) -> bool:
        """Whether it can be delivered from the start."""
        return self._pieces is not None

    def deliver(self, sink: IBodySink) -> None:
        """Deliver the body to ``sink``, instead of an earlier one; it must be ``repeatable``."""
        self._sink = sink
        self.paused = False
        if not self.begun:
            self.begun = True
            self._exchange.deliver_body(self)
            return
        if self._pieces:
            sink.write(b"".join(self._pieces))
        if self._complete:
            sink.finish()
        elif not self.paused:
            # The previous receiver may have paused it.
            self._exchange.resumeProducing()

    def write(self, data: bytes) -> None:
        if self._pieces is not None:
            self._size += len(data)
            if self._size > self._max_size:
                self._pieces = None
            else:
                append_piece(self._pieces, data)
        self._sink.write(data)

    def finish(self, trailers: Fields = ()) -> None:
        self._complete = True
        sink = self._sink
        # The sink refers to this body, to have it delivered again.
        del self._sink
        sink.finish(trailers)
