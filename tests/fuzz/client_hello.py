"""Fuzz target of the pass-through: the first bytes of a TLS client."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz.cases import PLAN, Target, cut
from tests.server.hellos import (
    VERSIONS,
    client_hello,
    extension,
    fragmented,
    message,
    records,
    server_name,
)
from yurttunnel.server.frontends.passthrough.client_hello import (
    MAX_FLIGHT,
    BadClientHello,
    ClientHelloReader,
)


def check(case: bytes) -> bool:
    """However it is split, a ClientHello names the same host, or is rejected for one reason."""
    whole, pieces = _read([case[PLAN:]]), _read(cut(case))
    assert whole == pieces, "the result depends on the splitting"
    return whole is not None and whole[0] == "named"


def _read(pieces: Iterable[bytes]) -> tuple[str, str | None] | None:
    """Return the name, or the reason for a rejection; ``None`` for an incomplete ClientHello."""
    reader = ClientHelloReader()
    kept = 0
    for piece in pieces:
        try:
            hello = reader.feed(piece)
        except BadClientHello as error:
            assert len(str(error)) < 300 and "\n" not in str(error), "the reason is too long"
            return "refused", str(error)
        if hello is not None:
            return "named", hello.server_name
        kept += len(piece)
        assert kept <= MAX_FLIGHT, "too much is buffered"
    return None


FLIGHTS = [
    client_hello("edge-1.example.org"),
    client_hello(None),
    client_hello("edge-1", VERSIONS[0]),
    fragmented(client_hello("edge-1"), 60),
    records(message(server_name(b"Edge."))),
    records(message(server_name(b"a", b"b"))),
]

CLIENT_HELLO = Target(
    "client-hello",
    check,
    [*FLIGHTS, *[flight[:70] for flight in FLIGHTS], b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"],
    [
        b"\x16\x03\x01\x00\x01\x01",
        b"\x16\x03\x01\x00\x00",
        bytes(4000),
        server_name(b"edge-2"),
        server_name(b"edge\r\nX: y"),
        extension(21, bytes(100)),
        b"\xff\xff",
    ],
)
