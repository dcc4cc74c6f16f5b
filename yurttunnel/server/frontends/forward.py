"""Plain TCP port forwards, from a local port to a target behind an agent."""

from __future__ import annotations

import re
from typing import NamedTuple

from twisted.internet.interfaces import IAddress

from yurttunnel.http.authority import (
    BadAuthority,
    join_authority,
    parse_address,
    split_authority,
    strip_port,
)
from yurttunnel.pki.names import BadIdentity, check_cluster_node_name
from yurttunnel.server.frontends.calls import DialingConnection, DialingFactory
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.shares import Kind

_SYNTAX = "write LISTEN=NODE/HOST:PORT, as 127.0.0.1:9000=edge-1/127.0.0.1:80"
_PORT_ONLY = re.compile(r":?([0-9]+)", re.ASCII)

Listen = tuple[str, int]
"""An address in its canonical form, or ``localhost``, and a port."""


class Forward(NamedTuple):
    """Forwards ``listen_host``:``listen_port`` to ``host``:``port`` through ``node``.

    ``text`` is the flag's value as given.
    """

    text: str
    listen_host: str
    listen_port: int
    node: str
    host: str
    port: int

    @property
    def flag(self) -> str:
        """The name of the forward in errors and messages."""
        return f"--forward {self.text}"

    @property
    def listen(self) -> Listen:
        """The listening address; no two forwards may have the same."""
        return self.listen_host, self.listen_port

    @property
    def target(self) -> str:
        """The target of the connections, in readable form."""
        return f"{self.node}/{join_authority(self.host, self.port)}"


def parse_forward(text: str) -> Forward:
    """Parse ``LISTEN=NODE/HOST:PORT``.

    LISTEN is ``ADDRESS:PORT``, or ``PORT`` or ``:PORT`` for the loopback address: everyone who can
    connect reaches the target, so a port is exposed to other machines only if the address says so.
    NODE is a name or an address that an agent serves. IPv6 addresses with a port are in brackets.
    Raises ``ValueError`` with a one-line reason.
    """
    listen, equals, rest = text.partition("=")
    node, slash, target = rest.partition("/")
    if not (equals and slash):
        raise ValueError(f"{text!r} is not a forward: {_SYNTAX}")
    try:
        listen_host, listen_port = parse_listen(listen)
        host, port = split_authority(target)
        node = strip_port(node)
        if parse_address(node) is None:
            check_cluster_node_name(node)
        return Forward(text, listen_host, listen_port, node, host, port)
    except (BadAuthority, BadIdentity) as error:
        raise ValueError(f"{text!r} is not a forward: {error}; {_SYNTAX}") from None


def parse_listen(text: str) -> Listen:
    """Parse the part before the equals sign; raises :class:`BadAuthority`, a ``ValueError``.

    ``localhost`` is the only name accepted: bind(2) would resolve others, and block meanwhile.
    """
    alone = _PORT_ONLY.fullmatch(text)
    try:
        host, port = split_authority(f"127.0.0.1:{alone[1]}" if alone else text)
        if host != "localhost" and parse_address(host) is None:
            raise BadAuthority(f"{host} is a name")
        return host, port
    except BadAuthority:
        raise BadAuthority(
            f"{text!r} is neither PORT (on the loopback address) nor ADDRESS:PORT"
        ) from None


class ForwardFactory(DialingFactory):
    """Accepts the connections of one forward.

    When the target changes (:meth:`set_target`), existing connections are not affected.
    """

    kind = Kind.FORWARD

    def __init__(self, registry: SessionRegistry, forward: Forward) -> None:
        super().__init__(registry)
        self.set_target(forward)

    def set_target(self, forward: Forward) -> None:
        """Send new connections to the target of ``forward``."""
        self.forward = forward
        self.flag = forward.flag

    def buildProtocol(self, addr: IAddress | None) -> ForwardProtocol:
        return ForwardProtocol(self)


class ForwardProtocol(DialingConnection):
    """One connection of a forward: not read until its stream is open; reset if the dial fails."""

    def __init__(self, factory: ForwardFactory) -> None:
        super().__init__(factory)
        self._request_ids = factory.request_ids
        self._forward = factory.forward

    def connectionMade(self) -> None:
        """Request the stream, and pause reading until it is open.

        Otherwise a caller that sends and closes its direction at once, as ``nc -N`` does, would
        count as gone.
        """
        super().connectionMade()
        self.transport.pauseProducing()
        forward = self._forward
        self.call.request_id = self._request_ids.make()
        self.dial(forward.node, forward.host, forward.port)

    def stream_opened(self, stream: IStream) -> None:
        self.join(stream)

    def dial_failed(self, error: BaseException) -> None:
        """Reset the connection, the only error that TCP has, and log the reason."""
        self.log.warn(
            "--forward {forward}: connection {request_id} to {target} was reset: {error}",
            forward=self._forward.text,
            request_id=self.call.request_id,
            node=self.call.node,
            target=self._forward.target,
            error=str(error),
        )
        self.transport.abortConnection()
