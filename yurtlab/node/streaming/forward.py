"""Port-forward: the connections that a client has made to ports of a pod."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, urlsplit

from twisted.internet.interfaces import IReactorTime

from yurtlab.node.interfaces import IPortForwarder
from yurtlab.node.streaming import negotiation
from yurtlab.node.streaming.connection import StreamingConnection
from yurtlab.node.streaming.forward_spdy import SPDYForward
from yurtlab.node.streaming.forward_websocket import MAX_PORTS, WebSocketForward
from yurtlab.node.streaming.websocket_tunnel import WebSocketTunnel
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange

SPDY_PROTOCOL: Final = "portforward.k8s.io"
TUNNEL_PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
CHANNEL_PROTOCOL: Final = "v4.channel.k8s.io"


def forward_upgrade(clock: IReactorTime, exchange: IExchange, forwarder: IPortForwarder) -> None:
    """Answer a request for port-forward, and have ``forwarder`` connect what the client forwards.

    A WebSocket without SPDY in it needs the ports in the query: ``port``, as kubelet is asked, or
    ``ports``, as the API is.
    """
    try:
        connection, fields = _connection(clock, exchange.head, forwarder)
    except negotiation.Refused as refused:
        refused.answer(exchange)
    else:
        negotiation.switch(exchange, fields, connection)


def _connection(
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
