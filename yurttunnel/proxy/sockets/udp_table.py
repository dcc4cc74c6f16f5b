"""The UDP clients of the process: their limits and their timeouts."""

from __future__ import annotations

import math
import resource
from collections import OrderedDict
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.http.shared_limit import SharedLimit

if TYPE_CHECKING:
    from yurttunnel.proxy.sockets.udp_client import UdpClient


class UdpClientLimit:
    """At most ``max_clients`` clients, of one service or of all; an address may have as many as are
    free (:class:`SharedLimit`).
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


MAX_CLIENTS = 16_384
"""The maximum number of clients of the process. Each takes a local port, of which Linux has 28,232
for each family (``net.ipv4.ip_local_port_range``), and other programs need some, too."""

MAX_PER_SERVICE = 12_288
"""The maximum number of clients of one virtual service, which leaves room for others."""

BEFORE_REPLY, AFTER_REPLY = 5.0, 30.0
"""How long an idle client is kept, in seconds: before the first reply, the minimum timeout of
resolvers (``timeout`` of resolv.conf(5)); after it, conntrack's own timeout
(``nf_conntrack_udp_timeout``)."""

MAX_BUFFERED = 4 << 20
"""The maximum total size of first datagrams that are kept for another attempt, in bytes."""

_SHARE = 8
"""One client for so many descriptors."""

_MAX_TICK = 1.0
"""The maximum length of a tick, the unit of time here, in seconds."""

MAX_ENDED_PER_TURN = 256
"""The number of clients ended in one reactor turn; closing as many takes about a millisecond."""


def max_clients() -> int:
    """Return the number of clients that the descriptors of this process allow."""
    return max(1, min(MAX_CLIENTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE))


class UdpClientTable:
    """Keeps at most ``max_clients`` clients, and ends idle ones. Over the limit, of all or of one
    service, it ends the clients of the new client's address that have been idle longest.

    Time is counted in ticks, so that a datagram requires no clock reading and, except for the first
    one in a tick, no change of the order. There is one timer while there are clients.
    """

    def __init__(
        self,
        clock: IReactorTime,
        max_clients: int = MAX_CLIENTS,
        max_per_service: int = MAX_PER_SERVICE,
        before_reply: float = BEFORE_REPLY,
        after_reply: float = AFTER_REPLY,
    ) -> None:
        self._clock = clock
        self.max_per_service = min(max_clients, max_per_service)
        self._period = min(_MAX_TICK, before_reply / 4, after_reply / 4)
        self.set_timeouts(before_reply, after_reply)
        self.tick = 0
        self.limit = UdpClientLimit(max_clients)
        self._buffered = 0
        # In the order of their last use.
        self._silent: OrderedDict[UdpClient, None] = OrderedDict()
        self._answered: OrderedDict[UdpClient, None] = OrderedDict()
        self._timer: IDelayedCall | None = None

    def set_timeouts(self, before_reply: float, after_reply: float) -> None:
        """Use these timeouts in seconds from now on, rounded up to ticks of the same length."""
        self._before_reply = math.ceil(before_reply / self._period)
        self._after_reply = math.ceil(after_reply / self._period)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.limit)

    def add(self, client: UdpClient) -> None:
        """Add a new client, and evict another one if necessary."""
        for limit in (client.limit, self.limit):
            limit.make_room(client.host)
            limit.add(client)
        client.used = client.dialed = self.tick
        self._silent[client] = None
        if self._timer is None:
            self._timer = self._clock.callLater(self._period, self._next_tick)

    def remove(self, client: UdpClient) -> None:
        """Remove a client."""
        client.limit.remove(client)
        self.limit.remove(client)
        del (self._answered if client.answered else self._silent)[client]
        if self._timer is not None and not len(self):
            self._timer.cancel()
            self._timer = None

    def touch(self, client: UdpClient) -> None:
        """Record that a client is used now; called if it has not been used in this tick."""
        client.used = self.tick
        client.limit.touch(client)
        self.limit.touch(client)
        (self._answered if client.answered else self._silent).move_to_end(client)
        if not client.confirmed and self.tick - client.dialed > self._before_reply:
            client.confirm()

    def replied(self, client: UdpClient) -> None:
        """Record the first reply to a client."""
        del self._silent[client]
        client.answered = True
        self._answered[client] = None

    def reserve(self, size: int) -> bool:
        """Reserve space for a datagram of ``size`` bytes; return whether there was enough."""
        if self._buffered + size > MAX_BUFFERED:
            return False
        self._buffered += size
        return True

    def release(self, size: int) -> None:
        """Release the space."""
        self._buffered -= size

    def _next_tick(self) -> None:
        self.tick += 1
        self._end_idle()

    def _end_idle(self) -> None:
        self._timer = None
        remaining = MAX_ENDED_PER_TURN
        for clients, ticks in (
            (self._silent, self._before_reply),
            (self._answered, self._after_reply),
        ):
            while clients and remaining:
                client = next(iter(clients))
                # One more, because the tick of its last use had begun before.
                if self.tick - client.used <= ticks:
                    break
                if not client.confirmed:
                    # Some protocols, such as syslog, have no replies: a datagram that is not
                    # refused counts as delivered.
                    client.confirm()
                client.end()
                remaining -= 1
        if not remaining:
            self._timer = self._clock.callLater(0, self._end_idle)
        elif len(self):
            self._timer = self._clock.callLater(self._period, self._next_tick)
