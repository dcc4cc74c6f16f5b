"""The end of connections that are half closed, and over which nothing comes any more."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IDelayedCall

from yurttunnel.tunnel.direct.descriptors import DescriptorSet

MOST_IDLE = 60.0
"""Seconds for which the open direction of a half-closed connection may carry nothing.

Without a bound, peers that never close their end leave sockets in CLOSE_WAIT and FIN_WAIT2 for ever
(kubernetes/kubernetes issues 18354 and 17641), which is why kube-proxy gave half-close up.
"""

LOOK = 5.0
"""Seconds from one look at them to the next, by which such an end may be late."""


class HalfClosable(Protocol):
    """A connection, as far as this module is concerned."""

    def progress(self) -> int:
        """Return a number that is another one when bytes have moved in either direction."""

    def expire(self) -> None:
        """Close both ends."""


class HalfClosed:
    """Closes what is half closed when it has been idle for :data:`MOST_IDLE`.

    One timer serves all of them: most are half closed for less than a millisecond.
    """

    def __init__(self, descriptors: DescriptorSet) -> None:
        self._descriptors = descriptors
        self._timer: IDelayedCall | None = None
        # What each had come to when it was looked at, and for how many looks that has been so.
        self._watched: dict[HalfClosable, tuple[int, int]] = {}

    def add(self, connection: HalfClosable) -> None:
        """Watch a connection of which one direction has ended."""
        self._watched[connection] = connection.progress(), 0
        if self._timer is None:
            self._timer = self._descriptors.callLater(LOOK, self._look)

    def discard(self, connection: HalfClosable) -> None:
        """Forget a connection, if it is watched."""
        self._watched.pop(connection, None)

    def stop(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look(self) -> None:
        self._timer = None
        idle = []
        for connection, (before, looks) in self._watched.items():
            now = connection.progress()
            if now != before:
                # That was since the last look.
                self._watched[connection] = now, 1
            # It may have been added right before the first look.
            elif looks * LOOK >= MOST_IDLE:
                idle.append(connection)
            else:
                self._watched[connection] = now, looks + 1
        if len(idle) < len(self._watched):
            self._timer = self._descriptors.callLater(LOOK, self._look)
        for connection in idle:
            connection.expire()
