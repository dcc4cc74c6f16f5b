"""A timeout for half-closed connections that are idle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall

from yurttunnel.tunnel.direct.descriptors import DescriptorSet

MAX_IDLE_SECONDS = 60.0
"""How long the open direction of a half-closed connection may be idle, in seconds.

Without a limit, peers that never close their end would leave sockets in CLOSE_WAIT and FIN_WAIT2
forever (kubernetes/kubernetes issues 18354 and 17641), which is why kube-proxy no longer supports
half-close.
"""

CHECK_SECONDS = 5.0
"""The interval of the checks in seconds, by which a connection may be closed late."""

MAX_ENDED_PER_TURN = 64
"""The number of connections that are checked, or ended, in one reactor turn; ending as many takes
2.5 ms."""


class HalfClosable(Protocol):
    """The part of a connection that this module uses."""

    def progress(self) -> int:
        """Return a number that changes when bytes have been transferred in either direction."""

    def expire(self) -> None:
        """Close both ends."""


class HalfClosed:
    """Closes half-closed connections that have been idle for :data:`MAX_IDLE_SECONDS`.

    One timer serves all of them: most are half-closed for less than a millisecond.
    """

    def __init__(self, descriptors: DescriptorSet) -> None:
        self._descriptors = descriptors
        self._timer: IDelayedCall | None = None
        # The progress of each connection at the last check, and for how many checks it has not
        # changed.
        self._watched: dict[HalfClosable, tuple[int, int]] = {}

    def add(self, connection: HalfClosable) -> None:
        """Watch a connection of which one direction has ended."""
        self._watched[connection] = connection.progress(), 0
        if self._timer is None:
            self._timer = self._descriptors.callLater(CHECK_SECONDS, self._check)

    def discard(self, connection: HalfClosable) -> None:
        """Stop watching a connection, if it is watched."""
        self._watched.pop(connection, None)

    def stop(self) -> None:
        """Stop watching all connections."""
        self._watched.clear()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _check(self) -> None:
        self._check_some(iter(list(self._watched)))

    def _check_some(self, connections: Iterator[HalfClosable]) -> None:
        """Check the next of these connections, a limited number in each reactor turn."""
        self._timer = None
        idle = []
        batch = list(islice(connections, MAX_ENDED_PER_TURN))
        # Some may have ended since the check began.
        for connection in filter(self._watched.__contains__, batch):
            before, idle_checks = self._watched[connection]
            now = connection.progress()
            if now != before:
                # It has been idle for less than one interval.
                self._watched[connection] = now, 1
            # The first interval may have been shorter, because the connection was added in the
            # middle of it.
            elif idle_checks * CHECK_SECONDS >= MAX_IDLE_SECONDS:
                idle.append(connection)
            else:
                self._watched[connection] = now, idle_checks + 1
        if len(batch) == MAX_ENDED_PER_TURN:
            self._timer = self._descriptors.callLater(0, self._check_some, connections)
        elif len(idle) < len(self._watched):
            self._timer = self._descriptors.callLater(CHECK_SECONDS, self._check)
        for connection in idle:
            connection.expire()
