"""The limits for UDP clients, of one service or of all, and which client to evict for a new one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from yurttunnel.http.shared_limit import SharedLimit

if TYPE_CHECKING:
    from yurttunnel.proxy.sockets.udp_client import UdpClient


class UdpClientLimit:
    """At most ``max_clients`` clients; an address may have as many as are free
    (:class:`SharedLimit`).
    """

    def __init__(self, max_clients: int) -> None:
        self._limit = SharedLimit(max_clients)
        # All clients, and those of each address, in the order of their last use.
        self._clients: OrderedDict[UdpClient, None] = OrderedDict()
        self._by_address: dict[str, OrderedDict[UdpClient, None]] = {}

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._clients)

    def make_room(self, host: str) -> None:
        """End a client if an address may not have one more: the one of the same address that has
        been idle longest, or of all if the address has none.
        """
        if self._limit.has_room_for(host):
            return
        same_address = self._by_address.get(host)
        if same_address is None:
            self.evict()
        else:
            next(iter(same_address)).end()

    def evict(self) -> None:
        """End the client that has been idle longest, if there is one."""
        if self._clients:
            next(iter(self._clients)).end()

    def add(self, client: UdpClient) -> None:
        """Add a new client."""
        self._limit.add(client.host, 1)
        self._clients[client] = None
        self._by_address.setdefault(client.host, OrderedDict())[client] = None

    def touch(self, client: UdpClient) -> None:
        """Record that a client is used now."""
        self._clients.move_to_end(client)
        self._by_address[client.host].move_to_end(client)

    def remove(self, client: UdpClient) -> None:
        """Remove a client."""
        self._limit.add(client.host, -1)
        del self._clients[client]
        same_address = self._by_address[client.host]
        del same_address[client]
        if not same_address:
            del self._by_address[client.host]
