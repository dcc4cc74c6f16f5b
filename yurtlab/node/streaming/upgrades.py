"""The upgrade requests with which clients begin to stream to a pod, and the responses.

Two kinds of upgrades are supported: ``SPDY/3.1``, whose version of the streaming protocol is in
``X-Stream-Protocol-Version``, and ``websocket`` (RFC 6455), where it is the subprotocol. The error
messages are the kubelet's. :func:`command_upgrade` serves exec and attach,
:func:`forward_upgrade` serves port-forward.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from yurtlab.node.interfaces import ICommandSession, IPortForwarder
from yurtlab.node.streaming.command_channels import SPDYCommand, WebSocketCommand
from yurtlab.node.streaming.command_client import CommandOptions
from yurtlab.node.streaming.connection import StreamingConnection
from yurtlab.node.streaming.forward_channels import (
    MAX_PORTS,
    SPDYForward,
    WebSocketForward,
    WebSocketTunnel,
)
from yurttunnel.http.errors import RequestFailed, status_content
from yurttunnel.http.fields import Fields, requested_upgrade
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange

_SPDY: Final = b"spdy/3.1"
_WEBSOCKET: Final = b"websocket"

_WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

SPDY_PROTOCOLS: Final = (
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
)
WEBSOCKET_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io")


def command_upgrade(
    clock: IReactorTime, exchange: IExchange, options: CommandOptions, session: ICommandSession
) -> None:
    """Respond to a request for exec or attach, and stream between its client and ``session``.

    ``session.client_ready`` is called, then input is delivered until it calls ``finish``. If the
    client disconnects before that, is rejected, or does not open its streams within 30 seconds,
    ``client_lost`` is called, possibly without ``client_ready``.
    """
    try:
        connection, fields = _command_connection(clock, exchange, options, session)
    except _Refused as refused:
        refused.answer(exchange)
        session.client_lost()
    else:
        _switch(exchange, fields, connection)


def _command_connection(
    clock: IReactorTime, exchange: IExchange, options: CommandOptions, session: ICommandSession
) -> tuple[StreamingConnection, Fields]:
    head = exchange.head
    if _upgrade_of(head) == _WEBSOCKET:
        protocol, fields = _choose_websocket(head, WEBSOCKET_PROTOCOLS)
        return WebSocketCommand(clock, protocol, options, session), fields
    protocol, fields = _choose_spdy(head, SPDY_PROTOCOLS)
    return SPDYCommand(clock, protocol, options, session), fields


SPDY_PROTOCOL: Final = "portforward.k8s.io"
TUNNEL_PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
CHANNEL_PROTOCOL: Final = "v4.channel.k8s.io"


def forward_upgrade(clock: IReactorTime, exchange: IExchange, forwarder: IPortForwarder) -> None:
    """Respond to a request for port-forward; ``forwarder`` makes the connections.

    A WebSocket without SPDY in it needs the ports in the query: ``port``, as in the kubelet's API,
    or ``ports``, as in the Kubernetes API.
    """
    try:
        connection, fields = _forward_connection(clock, exchange.head, forwarder)
    except _Refused as refused:
        refused.answer(exchange)
    else:
        _switch(exchange, fields, connection)


def _forward_connection(
    clock: IReactorTime, head: RequestHead, forwarder: IPortForwarder
) -> tuple[StreamingConnection, Fields]:
    if _upgrade_of(head) == _SPDY:
        _, fields = _choose_spdy(head, [SPDY_PROTOCOL])
        return SPDYForward(clock, forwarder), fields
    supported = [TUNNEL_PROTOCOL, CHANNEL_PROTOCOL]
    protocol, fields = _choose_websocket(head, supported)
    if protocol == TUNNEL_PROTOCOL:
        return WebSocketTunnel(clock, SPDYForward(clock, forwarder)), fields
    return WebSocketForward(clock, forwarder, _ports(head)), fields


def _ports(head: RequestHead) -> list[int]:
    query = parse_qs(urlsplit(head.target.decode("ascii", "replace")).query)
    texts = ",".join(query.get("port", []) + query.get("ports", [])).split(",")
    if texts == [""]:
        raise _Refused(400, 'query parameter "port" is required')
    if len(texts) > MAX_PORTS:
        raise _Refused(400, f"at most {MAX_PORTS} ports can be forwarded at once")
    return [_port(text) for text in texts]


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise _Refused(400, f'unable to parse "{text[:20]}" as a port')
    if not 0 < int(text) < 65536:
        raise _Refused(400, f'port "{text}" must be 1 to 65535')
    return int(text)


class _Refused(RequestFailed):
    """A request that cannot be upgraded, with further ``fields`` for the response."""

    def __init__(self, status: int, text: str, fields: Fields = ()) -> None:
        super().__init__(status, text)
        self.fields = fields

    def answer(self, exchange: IExchange) -> None:
        """Respond with a ``metav1.Status``, which kubectl expects in the body."""
        fields, body = status_content(self)
        exchange.respond(self.status, [*self.fields, *fields], body)


def _upgrade_of(head: RequestHead) -> bytes:
    """Return :data:`_SPDY` or :data:`_WEBSOCKET`; raises :class:`_Refused` for all else."""
    requested = requested_upgrade(head)
    if requested is not None:
        for protocol in requested.lower().split(b","):
            if protocol.strip() in (_SPDY, _WEBSOCKET):
                return protocol.strip()
    raise _Refused(400, "unable to upgrade: missing upgrade headers in request")


def _choose_spdy(head: RequestHead, supported: Sequence[str]) -> tuple[str, Fields]:
    """Choose the streaming protocol of a SPDY connection.

    Returns it with the fields of the 101. Raises :class:`_Refused`.
    """
    name = b"x-stream-protocol-version"
    requested = _list_members(head, name)
    if not requested:
        raise _Refused(400, "unable to upgrade: X-Stream-Protocol-Version is required")
    protocol = _first_common(requested, supported)
    if protocol is None:
        text = (
            "unable to upgrade: unable to negotiate protocol: client supports "
            f"{', '.join(requested)}, server accepts {', '.join(supported)}"
        )
        accepted = b"X-Accepted-Stream-Protocol-Versions"
        raise _Refused(403, text, [(accepted, other.encode()) for other in supported])
    return protocol, [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"SPDY/3.1"),
        (b"X-Stream-Protocol-Version", protocol.encode()),
    ]


def _choose_websocket(head: RequestHead, supported: Sequence[str]) -> tuple[str, Fields]:
    """Choose the subprotocol of a WebSocket; empty if the client names none.

    Returns it with the fields of the 101 (RFC 6455 section 4.2.2). Raises :class:`_Refused`.
    """
    if head.method != b"GET":
        raise _Refused(400, "unable to upgrade: a WebSocket requires GET")
    if head.values(b"sec-websocket-version") != [b"13"]:
        version = [(b"Sec-WebSocket-Version", b"13")]
        raise _Refused(400, "unable to upgrade: only version 13 of WebSocket is known", version)
    keys = head.values(b"sec-websocket-key")
    if len(keys) != 1 or not _is_nonce(keys[0]):
        raise _Refused(400, "unable to upgrade: Sec-WebSocket-Key is not 16 bytes in base64")
    digest = hashlib.sha1(keys[0] + _WEBSOCKET_GUID, usedforsecurity=False).digest()
    fields = [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Accept", base64.b64encode(digest)),
    ]
    requested = _list_members(head, b"sec-websocket-protocol")
    if not requested:
        return "", fields
    protocol = _first_common(requested, supported)
    if protocol is None:
        text = (
            f"unable to upgrade: requested protocol(s) are not supported: {', '.join(requested)}; "
            f"supports {', '.join(supported)}"
        )
        raise _Refused(403, text)
    return protocol, [*fields, (b"Sec-WebSocket-Protocol", protocol.encode())]


def _switch(exchange: IExchange, fields: Fields, connection: StreamingConnection) -> None:
    """Respond with 101, and hand over to ``connection``, which is lost if the client is gone."""
    try:
        exchange.switch(101, b"Switching Protocols", fields, connection)
    except ValueError as error:
        # The request has a body, which was not read.
        _Refused(400, f"unable to upgrade: {error}").answer(exchange)
        connection.end(Failure(error))
        return
    exchange.on_end(lambda error: connection.end(Failure(error or ConnectionDone())))


def _list_members(head: RequestHead, name: bytes) -> list[str]:
    """Return the members of a list in a field, in the client's order of preference."""
    members = b",".join(head.values(name)).decode("ascii", "replace").split(",")
    return [member.strip() for member in members if member.strip()]


def _first_common(requested: Sequence[str], supported: Sequence[str]) -> str | None:
    return next((protocol for protocol in requested if protocol in supported), None)


def _is_nonce(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
