"""The requests by which clients begin to stream to a pod, by SPDY/3.1 or WebSocket.

:func:`command_upgrade` serves exec and attach, :func:`forward_upgrade` serves port-forward. Both
take a clock, an exchange that has not been answered yet, and the other side of the seams in
:mod:`yurtlab.node.interfaces`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, urlsplit

from twisted.internet.interfaces import IReactorTime

from yurtlab.node.interfaces import ICommandSession, IPortForwarder
from yurtlab.node.streaming import negotiation
from yurtlab.node.streaming.command_channels import SPDYChannels, WebSocketChannels
from yurtlab.node.streaming.command_client import CommandClient, CommandOptions
from yurtlab.node.streaming.connection import StreamingConnection
from yurtlab.node.streaming.forward_spdy import SPDYForward
from yurtlab.node.streaming.forward_websocket import MAX_PORTS, WebSocketForward, WebSocketTunnel
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange

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
    """Answer a request for exec or attach, and stream between its client and ``session``.

    ``session`` is told ``client_ready`` and then gets input, until it calls ``finish``. When the
    client goes before that, or was refused, or does not open its streams within 30 seconds, it is
    told ``client_lost``, which so may come without ``client_ready``.
    """
    try:
        connection, fields = _command_connection(clock, exchange, options, session)
    except negotiation.Refused as refused:
        refused.answer(exchange)
        session.client_lost()
    else:
        negotiation.switch(exchange, fields, connection)


def _command_connection(
    clock: IReactorTime, exchange: IExchange, options: CommandOptions, session: ICommandSession
) -> tuple[StreamingConnection, Fields]:
    head = exchange.head
    if negotiation.upgrade_of(head) == negotiation.WEBSOCKET:
        protocol, fields = negotiation.choose_websocket(head, WEBSOCKET_PROTOCOLS)
        client = CommandClient(protocol, options, session)
        return WebSocketChannels(clock, protocol, options, client), fields
    protocol, fields = negotiation.choose_spdy(head, SPDY_PROTOCOLS)
    client = CommandClient(protocol, options, session)
    return SPDYChannels(clock, protocol, options, client).connection, fields


SPDY_PROTOCOL: Final = "portforward.k8s.io"
TUNNEL_PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
CHANNEL_PROTOCOL: Final = "v4.channel.k8s.io"


def forward_upgrade(clock: IReactorTime, exchange: IExchange, forwarder: IPortForwarder) -> None:
    """Answer a request for port-forward, and have ``forwarder`` connect what the client forwards.

    A WebSocket without SPDY in it needs the ports in the query: ``port``, as kubelet is asked, or
    ``ports``, as the API is.
    """
    try:
        connection, fields = _forward_connection(clock, exchange.head, forwarder)
    except negotiation.Refused as refused:
        refused.answer(exchange)
    else:
        negotiation.switch(exchange, fields, connection)


def _forward_connection(
    clock: IReactorTime, head: RequestHead, forwarder: IPortForwarder
) -> tuple[StreamingConnection, Fields]:
    if negotiation.upgrade_of(head) == negotiation.SPDY:
        _, fields = negotiation.choose_spdy(head, [SPDY_PROTOCOL])
        return SPDYForward(clock, forwarder).connection, fields
    supported = [TUNNEL_PROTOCOL, CHANNEL_PROTOCOL]
    protocol, fields = negotiation.choose_websocket(head, supported)
    if protocol == TUNNEL_PROTOCOL:
        return WebSocketTunnel(clock, SPDYForward(clock, forwarder).connection), fields
    return WebSocketForward(clock, forwarder, _ports(head)), fields


def _ports(head: RequestHead) -> list[int]:
    query = parse_qs(urlsplit(head.target.decode("ascii", "replace")).query)
    texts = ",".join(query.get("port", []) + query.get("ports", [])).split(",")
    if texts == [""]:
        raise negotiation.Refused(400, 'query parameter "port" is required')
    if len(texts) > MAX_PORTS:
        raise negotiation.Refused(400, f"at most {MAX_PORTS} ports can be forwarded at once")
    return [_port(text) for text in texts]


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise negotiation.Refused(400, f'unable to parse "{text[:20]}" as a port')
    if not 0 < int(text) < 65536:
        raise negotiation.Refused(400, f'port "{text}" must be 1 to 65535')
    return int(text)
