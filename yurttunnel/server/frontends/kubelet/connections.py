"""What a connection says of where it was going, whatever the requests on it say."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from twisted.internet.interfaces import ISystemHandle, ITransport

from yurttunnel.http.authority import BadAuthority, canonical_host
from yurttunnel.http.connection import is_secure
from yurttunnel.ops.rebinding import is_loopback
from yurttunnel.server.frontends.passthrough.original_destination import (
    SocketAddress,
    led_here_from,
)


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a connection was going.

    ``led_from`` is the address and port from which the kernel has led it here, ``None`` where it
    was for this listener. ``server_name`` is the name in its ClientHello (SNI) in its canonical
    form, ``None`` where TLS or a name is missing; an address is none. ``unnamed`` tells that there
    is TLS, and nothing in place of a name. ``from_here`` tells that it comes from a loopback
    address, so from a program of this machine.
    """

    led_from: SocketAddress | None
    server_name: str | None
    from_here: bool = False
    unnamed: bool = False


class Aims:
    """Reads each connection once, however many requests are on it.

    What is read is that of the first request, whose bytes have come by the kernel's entry for the
    connection.
    """

    def __init__(self) -> None:
        self._aims: WeakKeyDictionary[ITransport, Aim] = WeakKeyDictionary()

    def of(self, transport: ITransport) -> Aim:
        """Return where the connection of ``transport`` was going."""
        try:
            return self._aims[transport]
        except KeyError:
            aim = self._aims[transport] = self._read(transport)
            return aim

    def _read(self, transport: Any) -> Aim:
        secure = is_secure(transport)
        # TLS, ours as Twisted's, is the protocol of the plain transport.
        plain = ISystemHandle(transport.transport if secure else transport, None)
        led_from = None
        if plain is not None:
            led_from = led_here_from(cast(socket.socket, plain.getHandle()))
        sent = transport.getHandle().get_servername() if secure else None
        return Aim(
            led_from,
            _name(sent),
            is_loopback(getattr(transport.getPeer(), "host", "")),
            secure and sent is None,
        )


def _name(sent: bytes | None) -> str | None:
    if sent is None:
        return None
    try:
        host = canonical_host(sent.decode("ascii"))
    except (UnicodeDecodeError, BadAuthority):
        return None
    return host if isinstance(host, str) else None
