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
from yurttunnel.steering.original_destination import (
    SocketAddress,
    redirect_source,
)


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """The destination of a connection.

    ``redirected_from`` is the address and port from which the kernel has redirected it here,
    ``None`` if it was for this listener. ``server_name`` is the name in its ClientHello (SNI) in
    canonical form, ``None`` without TLS or without a name; an address does not count. ``lacks_sni``
    is whether there is TLS without SNI. ``is_local`` is whether it comes from a loopback address,
    and so from a program on this machine.
    """

    redirected_from: SocketAddress | None
    server_name: str | None
    is_local: bool = False
    lacks_sni: bool = False


class ConnectionTargets:
    """Reads each connection once, however many requests it carries.

    It is read at the first request, whose bytes have passed the kernel's entry for the connection.
    """

    def __init__(self) -> None:
        self._targets: WeakKeyDictionary[ITransport, ConnectionTarget] = WeakKeyDictionary()

    def of(self, transport: ITransport) -> ConnectionTarget:
        """Return the destination of the connection of ``transport``."""
        try:
            return self._targets[transport]
        except KeyError:
            target = self._targets[transport] = self._read(transport)
            return target

    def _read(self, transport: Any) -> ConnectionTarget:
        secure = is_secure(transport)
        # TLS, ours and Twisted's, is the protocol of the plain transport.
        plain = ISystemHandle(transport.transport if secure else transport, None)
        redirected_from = None
        if plain is not None:
            redirected_from = redirect_source(cast(socket.socket, plain.getHandle()))
        sent = transport.getHandle().get_servername() if secure else None
        return ConnectionTarget(
            redirected_from,
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
