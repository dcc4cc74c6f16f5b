"""Responses written by tests, instead of the API's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from zope.interface import implementer

from yurttunnel.http.interfaces import IExchange, IRequestHandler
from yurttunnel.http.request_body import read_body

Answering = Callable[[IExchange], object]

MAX_BODY_BYTES = 1024 * 1024
"""Maximum size of a created body in bytes."""


class Canned(NamedTuple):
    """A complete response: the same bytes for all clients."""

    body: bytes
    content_type: str = "application/json"
    fields: Sequence[tuple[bytes, bytes]] = ()
    status: int = 200

    def __call__(self, exchange: IExchange) -> None:
        """Send the response."""
        fields = [(b"Content-Type", self.content_type.encode()), *self.fields]
        exchange.respond(self.status, fields, self.body)


class Streamed:
    """A response that stays open: the test writes to all its clients.

    ``exchanges`` are the open ones; each has sent the head.
    """

    def __init__(self, content_type: str = "application/json") -> None:
        self.exchanges: list[IExchange] = []
        self._fields = [(b"Content-Type", content_type.encode())]

    def __call__(self, exchange: IExchange) -> None:
        """Begin a response."""
        exchange.send_head(200, self._fields)
        self.exchanges.append(exchange)
        exchange.on_end(lambda error: self.exchanges.remove(exchange))

    def write(self, data: bytes) -> None:
        """Send more data to all."""
        for exchange in self.exchanges:
            exchange.write(data)

    def finish(self) -> None:
        """End all of them."""
        for exchange in list(self.exchanges):
            exchange.finish()


class AcceptedBodies:
    """Accepts what is created, and responds with it; ``bodies`` has the bodies with their types."""

    def __init__(self) -> None:
        self.bodies: list[tuple[bytes, bytes]] = []

    def __call__(self, exchange: IExchange) -> None:
        """Accept a body."""
        [content_type] = exchange.head.values(b"content-type")

        def take(body: bytes) -> None:
            self.bodies.append((content_type, body))
            exchange.respond(201, [(b"Content-Type", content_type)], body)

        read_body(exchange, MAX_BODY_BYTES).addCallback(take)


@implementer(IRequestHandler)
class CannedAnswers:
    """Responds with the entries of ``answers``, and forwards all other requests to ``handler``.

    A key is a path, optionally followed by ``?watch`` for watches of that path, or preceded by
    ``POST`` for creations.
    """

    def __init__(self, handler: IRequestHandler) -> None:
        self.answers: dict[str, Answering] = {}
        self._handler = handler

    def request_received(self, exchange: IExchange) -> None:
        """Respond; see ``IRequestHandler``."""
        path, _, query = exchange.head.target.decode("latin-1").partition("?")
        watches = any(one in ("watch=true", "watch=1") for one in query.split("&"))
        match exchange.head.method:
            case b"GET":
                answer = self.answers.get(f"{path}?watch" if watches else path)
            case b"POST":
                answer = self.answers.get(f"POST {path}")
            case _:
                answer = None
        if answer is None:
            self._handler.request_received(exchange)
        else:
            answer(exchange)
