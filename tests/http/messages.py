"""Parsing of whole messages with the code of the connections: head, framing, body."""

from __future__ import annotations

from dataclasses import dataclass, field

from yurttunnel.http.body import BodyReader
from yurttunnel.http.framing import Framing, request_framing, response_framing
from yurttunnel.http.head import (
    HeadLimits,
    RequestHead,
    RequestHeadReader,
    ResponseHead,
    ResponseHeadReader,
)


@dataclass
class Message:
    """The parts of a message that were parsed; ``rest`` is what follows it."""

    head: RequestHead | ResponseHead | None = None
    framing: Framing | None = None
    body: bytes = b""
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    rest: bytes = b""
    reader: BodyReader | None = None

    @property
    def ended(self):
        """Whether the whole body has arrived."""
        return self.reader is not None and self.reader.ended


def read_request(pieces, message=None):
    """Parse a request; ``message`` has its parts even if this raises."""
    return _read(RequestHeadReader(HeadLimits()), request_framing, pieces, message or Message())


def read_response(pieces, method=b"GET", message=None):
    """Parse the response to a ``method``, as far as it has arrived."""

    def framing(head):
        return response_framing(method, head)

    return _read(ResponseHeadReader(HeadLimits()), framing, pieces, message or Message())


def _read(head_reader, framing, pieces, message):
    def deliver(data):
        message.body += data

    for piece in pieces:
        if message.head is None:
            message.head = head_reader.feed(piece)
            if message.head is None:
                continue
            message.framing = framing(message.head)
            message.reader = BodyReader(message.framing)
            piece = head_reader.early
        message.rest += message.reader.feed(piece, deliver)
        message.trailers = message.reader.trailers
    return message
