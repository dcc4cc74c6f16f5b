"""All UDP clients of the process: how many there are, and how long they are remembered."""

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
"""Clients of the process. Each takes a local port, of which Linux has 28,232 for each family
(``net.ipv4.ip_local_port_range``), and others of the machine need some, too."""

MOST_OF_SERVICE = 12_288
"""Clients of one virtual service: others have room beside it."""

BEFORE_REPLY, AFTER_REPLY = 5.0, 30.0
"""Seconds for which a client that is silent is remembered: before the first reply, that is what
resolvers wait at least (``timeout`` of resolv.conf(5)), and after it (conntrack's own
``nf_conntrack_udp_timeout``)."""

MOST_KEPT = 4 << 20
"""Bytes of first datagrams that are kept to be sent again, of all clients."""

_SHARE = 8
"""Of so many descriptors one may be a client's."""

_COARSEST = 1.0
"""Seconds of a tick at most, by which time is told here."""

MOST_ENDED = 256
"""Clients that are ended in one go: closing as many takes about a millisecond."""


def most_clients() -> int:
    """Return how many clients the descriptors of this process are enough for."""
    return max(1, min(MOST_CLIENTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE))


class UdpClientTable:
    """At most ``most`` clients; those that are idle are ended, and where there are too many, of all
    or of one service, those that have been idle for longest of the address with the new one.

    Time is told in ticks, so that a datagram costs no look at the clock and, but for the first one
    of a tick, no change of the order. There is one timer, while there are clients.
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
        """Have these seconds count from now on, to the next tick; its length stays as it is."""
        self._before_reply = math.ceil(before_reply / self._period)
        self._after_reply = math.ceil(after_reply / self._period)

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self.shares)

    def add(self, client: UdpClient) -> None:
        """Remember a client that is new, in the place of another one if need be."""
        for shares in (client.shares, self.shares):
            shares.make_room(client.host)
            shares.add(client)
        client.used = client.dialed = self.tick
        self._silent[client] = None
        if self._timer is None:
            self._timer = self._clock.callLater(self._period, self._next_tick)

    def remove(self, client: UdpClient) -> None:
        """Forget a client."""
        client.shares.remove(client)
        self.shares.remove(client)
        del (self._answered if client.answered else self._silent)[client]
        if self._timer is not None and not len(self):
            self._timer.cancel()
            self._timer = None

    def touch(self, client: UdpClient) -> None:
        """Note that a client is used now; asked for where it was not in this tick yet."""
        client.used = self.tick
        client.shares.touch(client)
        self.shares.touch(client)
        (self._answered if client.answered else self._silent).move_to_end(client)
        if not client.confirmed and self.tick - client.dialed > self._before_reply:
            client.confirm()

    def reply_came(self, client: UdpClient) -> None:
        """Note the first reply to a client."""
        del self._silent[client]
        client.answered = True
        self._answered[client] = None

    def keep(self, size: int) -> bool:
        """Ask for room for a datagram of ``size`` bytes; return whether there is."""
        if self._kept + size > MOST_KEPT:
            return False
        self._kept += size
        return True

    def keep_no_more(self, size: int) -> None:
        """Give room back."""
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
                # One more, as the tick of its last use had begun before that.
                if self.tick - client.used <= ticks:
                    break
                if not client.confirmed:
                    # Nobody replies to syslog: what is not refused is taken to arrive.
                    client.confirm()
                client.end()
                room -= 1
        if not room:
            self._timer = self._clock.callLater(0, self._end_idle)
        elif len(self):
            self._timer = self._clock.callLater(self._period, self._next_tick)
