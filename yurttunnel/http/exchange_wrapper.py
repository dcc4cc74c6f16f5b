"""An exchange that wraps another, the base class for middlewares."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IProducer, IProtocol
from zope.interface import implementer

from yurttunnel.http.fields import Fields
from yurttunnel.http.interfaces import ExchangeFailed, IBodySink, IBodySource, IExchange


@implementer(IExchange)
class ExchangeWrapper:
    """Delegates everything to ``exchange``; subclasses override what they change."""

    def __init__(self, exchange: IExchange) -> None:
        self.exchange = exchange
        self.head = exchange.head
        self.secure = exchange.secure
        self.transport = exchange.transport
        self.has_body = exchange.has_body

    @property
    def head_sent(self) -> bool:
        """See ``IExchange``."""
        return self.exchange.head_sent

    @property
    def status(self) -> int:
        """See ``IExchange``."""
        return self.exchange.status

    @property
    def failure(self) -> str:
        """See ``IExchange``."""
        return self.exchange.failure

    @property
    def bytes_sent(self) -> int:
        """See ``IExchange``."""
        return self.exchange.bytes_sent

    def send_informational(self, status: int, fields: Fields = ()) -> None:
        """See ``IExchange``."""
        self.exchange.send_informational(status, fields)

    def send_head(self, status: int, fields: Fields = (), reason: bytes = b"") -> None:
        """See ``IExchange``."""
        self.exchange.send_head(status, fields, reason)

    def respond(self, status: int, fields: Fields = (), body: bytes = b"") -> None:
        """See ``IExchange``."""
        self.exchange.respond(status, fields, body)

    def respond_from(
        self, status: int, fields: Fields, source: IBodySource, reason: bytes = b""
    ) -> None:
        """See ``IExchange``."""
        self.exchange.respond_from(status, fields, source, reason)

    def fail(self, status: int, text: str) -> None:
        """See ``IExchange``."""
        self.exchange.fail(status, text)

    def refuse(
        self,
        status: int,
        text: str,
        headers: Iterable[tuple[str, str]] = (),
        in_status_line: bool = False,
    ) -> None:
        """See ``IExchange``."""
        self.exchange.refuse(status, text, headers, in_status_line)

    def switch(self, status: int, reason: bytes, fields: Fields, protocol: IProtocol) -> None:
        """See ``IExchange``."""
        self.exchange.switch(status, reason, fields, protocol)

    def abort(self) -> None:
        """See ``IExchange``."""
        self.exchange.abort()

    def on_end(self, callback: Callable[[ExchangeFailed | None], object]) -> None:
        """See ``IExchange``."""
        self.exchange.on_end(callback)

    def write(self, data: bytes) -> None:
        """See ``IBodySink``."""
        self.exchange.write(data)

    def finish(self, trailers: Fields = ()) -> None:
        """See ``IBodySink``."""
        self.exchange.finish(trailers)

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """See ``IConsumer``."""
        self.exchange.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """See ``IConsumer``."""
        self.exchange.unregisterProducer()

    def deliver_body(self, sink: IBodySink) -> None:
        """See ``IBodySource``."""
        self.exchange.deliver_body(sink)

    def take_whole(self) -> bytes | None:
        """See ``IBodySource``."""
        return self.exchange.take_whole()

    def pauseProducing(self) -> None:
        """See ``IPushProducer``."""
        self.exchange.pauseProducing()

    def resumeProducing(self) -> None:
        """See ``IPushProducer``."""
        self.exchange.resumeProducing()

    def stopProducing(self) -> None:
        """See ``IPushProducer``."""
        self.exchange.stopProducing()
