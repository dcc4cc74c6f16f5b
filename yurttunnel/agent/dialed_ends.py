"""The agent's own ends of the connections that it makes for the tunnel's callers."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import ip_address

from twisted.internet.address import IPv4Address as TcpAddress
from twisted.internet.address import IPv6Address as Tcp6Address
from twisted.internet.interfaces import IAddress, IReactorTime

KEPT_SECONDS = 30.0
"""How long a closed end is kept: what it has sent may not have been read yet by this process."""

_End = tuple[str, int]


class DialedEnds:
    """Knows which clients of this process's own listeners come through the tunnel.

    Such a client has a loopback address as a program of this machine has. Its address and port
    are those of an end that the dialer has opened, though. There are never more closed ends than
    this machine has ports.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._open: set[_End] = set()
        self._closed: OrderedDict[_End, float] = OrderedDict()

    def __contains__(self, client: object) -> bool:
        """Say whether ``client``, the address of a listener's peer, is such an end."""
        end = _end(client)
        closed_at = self._closed.get(end) if end is not None else None
        return end in self._open or (closed_at is not None and not self._is_over(closed_at))

    def opened(self, address: IAddress) -> None:
        """Note the local address of a connection that has been made."""
        end = _end(address)
        if end is not None:
            self._open.add(end)

    def closed(self, address: IAddress) -> None:
        """Note that the connection with that local address has ended."""
        end = _end(address)
        if end is None:
            return
        self._open.discard(end)
        self._closed[end] = self._clock.seconds()
        self._closed.move_to_end(end)
        while self._is_over(next(iter(self._closed.values()))):
            self._closed.popitem(last=False)

    def _is_over(self, closed_at: float) -> bool:
        return self._clock.seconds() - closed_at >= KEPT_SECONDS


def _end(address: object) -> _End | None:
    """Give host and port of a TCP address; a listener on all addresses has mapped ones."""
    if not isinstance(address, TcpAddress | Tcp6Address):
        return None
    host = ip_address(address.host)
    return str(getattr(host, "ipv4_mapped", None) or host), address.port
