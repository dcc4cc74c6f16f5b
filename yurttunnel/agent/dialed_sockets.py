"""The agent's own sockets of the connections that it dials for the tunnel's callers."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from ipaddress import ip_address

from twisted.internet.address import IPv4Address as TcpAddress
from twisted.internet.address import IPv6Address as Tcp6Address
from twisted.internet.interfaces import IAddress, IReactorTime

from yurttunnel.http.authority import CACHED, canonical_address

CLOSED_SECONDS = 30.0
"""How long a closed socket is remembered: this process may not have read its last data yet."""

_TCP = (TcpAddress, Tcp6Address)

_SocketKey = tuple[str, int, int]
"""Host and port of a socket, and the port of its peer: the kernel may use one local port for
several concurrent connections to different destinations."""


class DialedSockets:
    """Knows which clients of this process's own listeners come through the tunnel.

    Such a client has a loopback address, like a program on this machine. But its address and port
    are those of a socket that the dialer has connected to the listener's port.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        # Not a Counter, which calls a Python function for each missing key.
        self._open: dict[_SocketKey, int] = {}
        self._closed: OrderedDict[_SocketKey, float] = OrderedDict()

    def contains(self, client: IAddress, listener: IAddress) -> bool:
        """Return whether ``client``, the peer of a connection to ``listener``, is such a socket."""
        key = _key(client, listener)
        closed_at = self._closed.get(key) if key is not None else None
        return key in self._open or (closed_at is not None and not self._is_expired(closed_at))

    def opened(self, local: IAddress, remote: IAddress) -> None:
        """Record that ``local`` has connected to ``remote``."""
        key = _key(local, remote)
        if key is not None:
            self._open[key] = self._open.get(key, 0) + 1

    def closed(self, local: IAddress, remote: IAddress) -> None:
        """Record that the connection from ``local`` to ``remote`` has ended."""
        key = _key(local, remote)
        if key is None:
            return
        # Others may be open: one port may be connected to 127.0.0.1 and 127.0.0.2 at the same time.
        others = self._open[key] - 1
        if others:
            self._open[key] = others
        else:
            del self._open[key]
        self._closed[key] = self._clock.seconds()
        self._closed.move_to_end(key)
        while self._is_expired(next(iter(self._closed.values()))):
            self._closed.popitem(last=False)

    def _is_expired(self, closed_at: float) -> bool:
        return self._clock.seconds() - closed_at >= CLOSED_SECONDS


def _key(address: IAddress, other: IAddress) -> _SocketKey | None:
    """Return the key of a TCP address; a wildcard listener sees IPv4-mapped ones.

    Of the other address only the port counts: 0.0.0.0 and 127.0.0.1 lead to the same listener.
    """
    if not isinstance(address, _TCP) or not isinstance(other, _TCP):
        return None
    return _canonical(address.host), address.port, other.port


@lru_cache(CACHED)
def _canonical(host: str) -> str:
    return str(canonical_address(ip_address(host)))
