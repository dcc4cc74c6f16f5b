"""The destination of a connection, independent of the requests on it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from twisted.internet.interfaces import ISystemHandle, ITransport

from yurttunnel.http.authority import BadAuthority, canonical_host
from yurttunnel.http.connection import is_secure
from yurttunnel.ops.host_check import is_loopback
from yurttunnel.server.frontends.passthrough.original_destination import (
    SocketAddress,
    led_here_from,
)


@dataclass(frozen=True, slots=True)
class Aim:
    """The destination of a connection.

    ``led_from`` is the address and port from which the kernel has redirected it here, ``None`` if
    it was for this listener. ``server_name`` is the name in its ClientHello (SNI) in canonical
    form, ``None`` without TLS or without a name; an address does not count. ``unnamed`` is whether
    there is TLS without SNI. ``from_here`` is whether it comes from a loopback address, and so from
    a program on this machine.
    """

    led_from: SocketAddress | None
    server_name: str | None
    from_here: bool = False
    unnamed: bool = False


class Aims:
    """Reads each connection once, however many requests it carries.

    It is read at the first request, whose bytes have passed the kernel's entry for the connection.
    """

    def __init__(self) -> None:
        self._aims: WeakKeyDictionary[ITransport, Aim] = WeakKeyDictionary()

    def of(self, transport: ITransport) -> Aim:
        """Return the destination of the connection of ``transport``."""
        try:
            return self._aims[transport]
        except KeyError:
            aim = self._aims[transport] = self._read(transport)
            return aim

    def _read(self, transport: Any) -> Aim:
        secure = is_secure(transport)
        # TLS, ours and Twisted's, is the protocol of the plain transport.
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
