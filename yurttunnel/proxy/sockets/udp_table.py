"""The UDP clients of the process: their limits and their timeouts."""

from __future__ import annotations

import math
import resource
from collections import OrderedDict
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.proxy.sockets.udp_shares import UdpShares

if TYPE_CHECKING:
    from yurttunnel.proxy.sockets.udp_client import UdpClient

MOST_CLIENTS = 16_384
"""The maximum number of clients of the process. Each takes a local port, of which Linux has 28,232
for each family (``net.ipv4.ip_local_port_range``), and other programs need some, too."""

MOST_OF_SERVICE = 12_288
"""The maximum number of clients of one virtual service, which leaves room for others."""

BEFORE_REPLY, AFTER_REPLY = 5.0, 30.0
"""How long an idle client is kept, in seconds: before the first reply, the minimum timeout of
resolvers (``timeout`` of resolv.conf(5)); after it, conntrack's own timeout
(``nf_conntrack_udp_timeout``)."""

MOST_KEPT = 4 << 20
"""The maximum total size of first datagrams that are kept for another attempt, in bytes."""

_SHARE = 8
"""One client for so many descriptors."""

_COARSEST = 1.0
"""The maximum length of a tick, the unit of time here, in seconds."""

MOST_ENDED = 256
"""The number of clients ended in one reactor turn; closing as many takes about a millisecond."""


def most_clients() -> int:
    """Return the number of clients that the descriptors of this process allow."""
    return max(1, min(MOST_CLIENTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE))


class UdpClientTable:
    """Keeps at most ``most`` clients, and ends idle ones. Over the limit, of all or of one service,
    it ends the clients of the new client's address that have been idle longest.

    Time is counted in ticks, so that a datagram requires no clock reading and, except for the first
    one in a tick, no change of the order. There is one timer while there are clients.
    """

    def __init__(
        self,
        clock: IReactorTime,
        most: int = MOST_CLIENTS,
        most_of_service: int = MOST_OF_SERVICE,
        before_reply: float = BEFORE_REPLY,
        after_reply: float = AFTER_REPLY,
    ) -> None:
        self._clock = clock
        self.most_of_service = min(most, most_of_service)
        self._period = min(_COARSEST, before_reply / 4, after_reply / 4)
        self.remember(before_reply, after_reply)
        self.tick = 0
        self.shares = UdpShares(most)
        self._kept = 0
        # In the order of their last use.
        self._silent: OrderedDict[UdpClient, None] = OrderedDict()
        self._answered: OrderedDict[UdpClient, None] = OrderedDict()
        self._timer: IDelayedCall | None = None

    def remember(self, before_reply: float, after_reply: float) -> None:
        """Use these timeouts in seconds from now on, rounded up to ticks of the same length."""
        self._before_reply = math.ceil(before_reply / self._period)
        self._after_reply = math.ceil(after_reply / self._period)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.shares)

    def add(self, client: UdpClient) -> None:
        """Add a new client, and evict another one if necessary."""
        for shares in (client.shares, self.shares):
            shares.make_room(client.host)
            shares.add(client)
        client.used = client.dialed = self.tick
        self._silent[client] = None
        if self._timer is None:
            self._timer = self._clock.callLater(self._period, self._next_tick)

    def remove(self, client: UdpClient) -> None:
        """Remove a client."""
        client.shares.remove(client)
        self.shares.remove(client)
        del (self._answered if client.answered else self._silent)[client]
        if self._timer is not None and not len(self):
            self._timer.cancel()
            self._timer = None

    def touch(self, client: UdpClient) -> None:
        """Record that a client is used now; called if it has not been used in this tick."""
        client.used = self.tick
        client.shares.touch(client)
        self.shares.touch(client)
        (self._answered if client.answered else self._silent).move_to_end(client)
        if not client.confirmed and self.tick - client.dialed > self._before_reply:
            client.confirm()

    def reply_came(self, client: UdpClient) -> None:
        """Record the first reply to a client."""
        del self._silent[client]
        client.answered = True
        self._answered[client] = None

    def keep(self, size: int) -> bool:
        """Reserve space for a datagram of ``size`` bytes; return whether there was enough."""
        if self._kept + size > MOST_KEPT:
            return False
        self._kept += size
        return True

    def keep_no_more(self, size: int) -> None:
        """Release the space."""
        self._kept -= size

    def _next_tick(self) -> None:
        self.tick += 1
        self._end_idle()

    def _end_idle(self) -> None:
        self._timer = None
        room = MOST_ENDED
        for order, ticks in (
            (self._silent, self._before_reply),
            (self._answered, self._after_reply),
        ):
            while order and room:
                client = next(iter(order))
                # One more, because the tick of its last use had begun before.
                if self.tick - client.used <= ticks:
                    break
                if not client.confirmed:
                    # Some protocols, such as syslog, have no replies: a datagram that is not
                    # refused counts as delivered.
                    client.confirm()
                client.end()
                room -= 1
        if not room:
            self._timer = self._clock.callLater(0, self._end_idle)
        elif len(self):
            self._timer = self._clock.callLater(self._period, self._next_tick)
