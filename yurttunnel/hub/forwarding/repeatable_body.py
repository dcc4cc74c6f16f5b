"""Request bodies that can be delivered more than once, as far as they are small."""

from __future__ import annotations

from zope.interface import implementer

from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import IBodySink, IExchange
from yurttunnel.wire.pieces import keep_piece


@implementer(IBodySink)
class RepeatableBody:
    """Passes the body of ``exchange`` on, and keeps it while it has ``most`` bytes or fewer."""

    def __init__(self, exchange: IExchange, most: int) -> None:
        self._exchange = exchange
        self._most = most
        self._pieces: list[bytes] | None = []
        self._size = 0
        self._complete = False
        self.begun = False
        """It has been asked for."""
        self.paused = False
        """No more of it is wanted for now, as whoever takes it has said since it was delivered."""
        self._sink: IBodySink

    @property
    def whole(self) -> bytes | None:
        """The body, ``None`` while it is incomplete or if it is too long."""
        if self._pieces is None or not self._complete:
            return None
        return b"".join(self._pieces)

    @property
    def repeatable(self) -> bool:
        """Whether it can be delivered from its beginning."""
        return self._pieces is not None

    def deliver(self, sink: IBodySink) -> None:
        """Write the body to ``sink``, and no more to the one before, if it is ``repeatable``."""
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
            # The one before may have wanted no more.
            self._exchange.resumeProducing()

    def write(self, data: bytes) -> None:
        """See ``IBodySink``."""
        if self._pieces is not None:
            self._size += len(data)
            if self._size > self._most:
                self._pieces = None
            else:
                keep_piece(self._pieces, data)
        self._sink.write(data)

    def finish(self, trailers: Fields = ()) -> None:
        """See ``IBodySink``."""
        self._complete = True
        self._sink.finish(trailers)
