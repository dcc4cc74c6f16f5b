"""What the exchanges of both sides have in common: one body goes out, and one comes in."""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.interfaces import IProducer
from twisted.logger import Logger

from yurttunnel.http.body import BodyError, BodyWriter
from yurttunnel.http.connection import ConnectionWriter
from yurttunnel.http.fields import Fields


class ExchangeConnection(Protocol):
    """What the exchanges of both sides need of their connection."""

    transport: Any
    writer: ConnectionWriter

    def pause_body(self) -> None:
        """Read no more for now."""

    def resume_body(self) -> None:
        """Read again."""


class ExchangeSide:
    """One exchange on ``connection``: the consumer and the push producer that it is.

    Subclasses say how far it is: whether it has ``ended``, and whether its body is
    ``receivable``; and what follows from a body that is not as long as its head says.
    """

    _log = Logger()
    _writer: BodyWriter

    def __init__(self, connection: ExchangeConnection) -> None:
        self._connection = connection
        self._connection_writer = connection.writer

    @property
    def ended(self) -> bool:
        """It is complete, or has failed."""
        raise NotImplementedError

    @property
    def receivable(self) -> bool:
        """There may be more of the body that comes in."""
        raise NotImplementedError

    def wrong_length(self, error: BodyError) -> None:
        """Abort, as more or less was written than ``Content-Length`` says: a defect."""
        raise NotImplementedError

    # -- the body that goes out ----------------------------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Pause ``producer``, a push producer, while the peer does not keep up."""
        if not streaming:
            raise ValueError("only push producers are served")
        if not self.ended:
            self._connection_writer.register_producer(producer)

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        if not self.ended:
            self._connection_writer.unregister_producer()

    def _send(self, data: bytes) -> bool:
        """Send a piece; tell whether the body has room for it."""
        try:
            encoded = self._writer.encode(data)
        except BodyError as error:
            self.wrong_length(error)
            return False
        self._connection_writer.write(encoded)
        return True

    def _send_last(self, trailers: Fields) -> bool:
        """End the body; tell whether it is as long as its head says."""
        try:
            last = self._writer.finish(trailers)
        except BodyError as error:
            self.wrong_length(error)
            return False
        if last:
            self._connection_writer.write(last)
        return True

    # -- the body that comes in ----------------------------------------------------------------

    def pauseProducing(self) -> None:
        """See ``IPushProducer``."""
        if self.receivable:
            self._connection.pause_body()

    def resumeProducing(self) -> None:
        """See ``IPushProducer``."""
        if self.receivable:
            self._connection.resume_body()

    def stopProducing(self) -> None:
        """Read no more: its consumer is lost, and says by itself what that means."""
        self.pauseProducing()
