"""The common base of client and server exchanges: each sends one body and receives one."""

from __future__ import annotations

from twisted.internet.interfaces import IProducer
from twisted.logger import Logger

from yurttunnel.http.body import BodyError, BodyWriter
from yurttunnel.http.connection import ConnectionWriter, HTTPConnection
from yurttunnel.http.fields import Fields


class ExchangeSide:
    """One exchange on a connection, as a consumer and a push producer.

    Subclasses set the connection and its writer, and define the state (``ended``, ``receivable``)
    and how to handle a body whose length does not match its head (``wrong_length``).
    """

    _log = Logger()
    _connection: HTTPConnection
    _connection_writer: ConnectionWriter
    _writer: BodyWriter

    @property
    def ended(self) -> bool:
        """Whether the exchange is complete or has failed."""
        raise NotImplementedError

    @property
    def receivable(self) -> bool:
        """Whether more of the incoming body may arrive."""
        raise NotImplementedError

    def wrong_length(self, error: BodyError) -> None:
        """Abort: more or less was written than ``Content-Length`` announced, which is a defect."""
        raise NotImplementedError

    # -- the outgoing body ---------------------------------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register a push producer, which is paused while the peer does not keep up."""
        if not streaming:
            raise ValueError("only push producers are served")
        if not self.ended:
            self._connection_writer.register_producer(producer)

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        if not self.ended:
            self._connection_writer.producer = None

    def _send(self, data: bytes) -> bool:
        """Send a piece; return whether it fits the announced length."""
        try:
            encoded = self._writer.encode(data)
        except BodyError as error:
            self.wrong_length(error)
            return False
        self._connection_writer.write(encoded)
        return True

    def _send_last(self, trailers: Fields) -> bool:
        """End the body; return whether it has the announced length."""
        try:
            last = self._writer.finish(trailers)
        except BodyError as error:
            self.wrong_length(error)
            return False
        if last:
            self._connection_writer.write(last)
        return True

    # -- the incoming body ---------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """See ``IPushProducer``."""
        if self.receivable:
            self._connection.pause_body()

    def resumeProducing(self) -> None:
        """See ``IPushProducer``."""
        if self.receivable:
            self._connection.resume_body()

    def stopProducing(self) -> None:
        """Pause reading: the consumer is lost, and handles that itself."""
        self.pauseProducing()
