"""Exec and attach: a process, and a client that streams to it by SPDY or by WebSocket."""

from __future__ import annotations

from typing import Final

from twisted.internet.interfaces import IReactorTime

from yurtlab.node.interfaces import ICommandSession
from yurtlab.node.streaming import negotiation
from yurtlab.node.streaming.command_client import CommandClient, CommandOptions
from yurtlab.node.streaming.command_spdy import SPDYChannels
from yurtlab.node.streaming.command_websocket import WebSocketChannels
from yurtlab.node.streaming.connection import StreamingConnection
from yurttunnel.http.fields import Fields
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
        connection, fields = _connection(clock, exchange, options, session)
    except negotiation.Refused as refused:
        refused.answer(exchange)
        session.client_lost()
    else:
        negotiation.switch(exchange, fields, connection)


def _connection(
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
