"""What a client asks for in the head of its request, and what it is answered.

Two kinds of upgrades are known: ``SPDY/3.1``, whose version of the streaming protocol is in
``X-Stream-Protocol-Version``, and ``websocket`` (RFC 6455), where it is the subprotocol. The texts
of the refusals are kubelet's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from yurtlab.api.errors import ApiError
from yurtlab.node.streaming.connection import StreamingConnection
from yurttunnel.http.fields import Fields, requested_upgrade
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange

SPDY = b"spdy/3.1"
WEBSOCKET = b"websocket"

_WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_REASONS = {400: "BadRequest", 403: "Forbidden"}


class Refused(Exception):
    """A request that cannot be upgraded: the HTTP ``status``, a ``text`` and more ``fields``."""

    def __init__(self, status: int, text: str, fields: Fields = ()) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text
        self.fields = fields

    def answer(self, exchange: IExchange) -> None:
        """Answer with a ``metav1.Status``, which kubectl looks for in the body."""
        status = ApiError(self.status, _REASONS[self.status], self.text).as_status()
        fields = [*self.fields, (b"Content-Type", b"application/json")]
        exchange.respond(self.status, fields, json.dumps(status).encode("ascii") + b"\n")


def upgrade_of(head: RequestHead) -> bytes:
    """Return :data:`SPDY` or :data:`WEBSOCKET`; raises :class:`Refused` for all else."""
    asked = requested_upgrade(head)
    if asked is not None:
        for protocol in asked.lower().split(b","):
            if protocol.strip() in (SPDY, WEBSOCKET):
                return protocol.strip()
    raise Refused(400, "unable to upgrade: missing upgrade headers in request")


def choose_spdy(head: RequestHead, supported: Sequence[str]) -> tuple[str, Fields]:
    """Choose the streaming protocol of a SPDY connection.

    Returns it with the fields of the 101. Raises :class:`Refused`.
    """
    name = b"x-stream-protocol-version"
    asked = _listed(head, name)
    if not asked:
        raise Refused(400, "unable to upgrade: X-Stream-Protocol-Version is required")
    protocol = _first_common(asked, supported)
    if protocol is None:
        text = (
            "unable to upgrade: unable to negotiate protocol: client supports "
            f"{', '.join(asked)}, server accepts {', '.join(supported)}"
        )
        accepted = b"X-Accepted-Stream-Protocol-Versions"
        raise Refused(403, text, [(accepted, other.encode()) for other in supported])
    return protocol, [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"SPDY/3.1"),
        (b"X-Stream-Protocol-Version", protocol.encode()),
    ]


def choose_websocket(head: RequestHead, supported: Sequence[str]) -> tuple[str, Fields]:
    """Choose the subprotocol of a WebSocket; empty if the client names none.

    Returns it with the fields of the 101 (RFC 6455 section 4.2.2). Raises :class:`Refused`.
    """
    if head.method != b"GET":
        raise Refused(400, "unable to upgrade: a WebSocket is asked for by GET")
    if head.values(b"sec-websocket-version") != [b"13"]:
        version = [(b"Sec-WebSocket-Version", b"13")]
        raise Refused(400, "unable to upgrade: only version 13 of WebSocket is known", version)
    keys = head.values(b"sec-websocket-key")
    if len(keys) != 1 or not _is_nonce(keys[0]):
        raise Refused(400, "unable to upgrade: Sec-WebSocket-Key is not 16 bytes in base64")
    digest = hashlib.sha1(keys[0] + _WEBSOCKET_GUID, usedforsecurity=False).digest()
    fields = [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Accept", base64.b64encode(digest)),
    ]
    asked = _listed(head, b"sec-websocket-protocol")
    if not asked:
        return "", fields
    protocol = _first_common(asked, supported)
    if protocol is None:
        text = (
            f"unable to upgrade: requested protocol(s) are not supported: {', '.join(asked)}; "
            f"supports {', '.join(supported)}"
        )
        raise Refused(403, text)
    return protocol, [*fields, (b"Sec-WebSocket-Protocol", protocol.encode())]


def switch(exchange: IExchange, fields: Fields, connection: StreamingConnection) -> None:
    """Answer 101 and hand over to ``connection``, which is lost if the client has left already."""
    try:
        exchange.switch(101, b"Switching Protocols", fields, connection)
    except ValueError as error:
        # The request has a body, which has not been read.
        Refused(400, f"unable to upgrade: {error}").answer(exchange)
        connection.end(Failure(error))
        return
    exchange.on_end(lambda error: connection.end(Failure(error or ConnectionDone())))


def _listed(head: RequestHead, name: bytes) -> list[str]:
    """Return the members of a list in a field, in the client's order of preference."""
    members = b",".join(head.values(name)).decode("ascii", "replace").split(",")
    return [member.strip() for member in members if member.strip()]


def _first_common(asked: Sequence[str], supported: Sequence[str]) -> str | None:
    return next((protocol for protocol in asked if protocol in supported), None)


def _is_nonce(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
