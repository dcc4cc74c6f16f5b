"""The kernel's word that an address of this machine, or a route, has come or gone."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pyroute2.netlink import NETLINK_ROUTE
from twisted.application.service import Service
from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

_GROUPS = 0x10 | 0x40 | 0x100 | 0x400
"""``RTMGRP_IPV4_IFADDR``, ``RTMGRP_IPV4_ROUTE``, and those of IPv6, of linux/rtnetlink.h."""

_LARGEST = 65536

_AT_ONCE = 16
"""Datagrams that are read in one turn of the reactor; what is left makes it come again."""


@implementer(IReadDescriptor)
class AddressEvents(Service):
    """Calls ``changed()`` while it runs, for the network namespace in which it was started.

    What has changed is not said: events may be lost, and whoever looks sees all of it.
    """

    def __init__(self, reactor: IReactorFDSet, changed: Callable[[], object]) -> None:
        self._reactor = reactor
        self._changed = changed
        self._socket: socket.socket | None = None

    def startService(self) -> None:
        """Begin to listen; where the kernel tells nothing, nobody is told."""
        super().startService()
        try:
            events = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_ROUTE
            )
            events.bind((0, _GROUPS))
        except OSError:
            # Whoever looks from time to time sees the same, only later.
            return
        self._socket = events
        self._reactor.addReader(self)

    def stopService(self) -> None:
        super().stopService()
        self._close()

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        return "address events"

    def doRead(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                if self._socket is None or not self._socket.recv(_LARGEST):
                    break
            except BlockingIOError:
                break
            except OSError:
                # More came than the kernel keeps (ENOBUFS): something has changed.
                continue
        self._changed()

    def connectionLost(self, reason: Failure) -> None:
        """Let the socket go: the reactor ends, or cannot read it."""
        self._close()

    def _close(self) -> None:
        closed, self._socket = self._socket, None
        if closed is not None:
            self._reactor.removeReader(self)
            closed.close()
