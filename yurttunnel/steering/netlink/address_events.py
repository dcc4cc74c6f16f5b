"""Kernel notifications about changes of this machine's addresses and routes."""

from __future__ import annotations

import socket
from collections.abc import Callable

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.steering.netlink.netlink_socket import NETLINK_ROUTE

_GROUPS = 0x10 | 0x40 | 0x100 | 0x400
"""``RTMGRP_IPV4_IFADDR``, ``RTMGRP_IPV4_ROUTE``, and those of IPv6, from linux/rtnetlink.h."""

_BUFFER_SIZE = 65536

_MAX_DATAGRAMS = 16
"""The maximum number of datagrams read in one reactor turn; the rest is read in the next one."""


@implementer(IReadDescriptor)
class AddressEvents(Service):
    """Calls ``changed()`` at changes while it runs, for the network namespace in which it was
    started.

    It does not report what has changed: events may be lost, and the callback reads the current
    state.
    """

    def __init__(self, reactor: IReactorFDSet, changed: Callable[[], object]) -> None:
        self._reactor = reactor
        self._changed = changed
        self._socket: socket.socket | None = None

    def startService(self) -> None:
        """Start to listen; if the kernel does not support it, there are no notifications."""
        super().startService()
        try:
            events = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_ROUTE
            )
            events.bind((0, _GROUPS))
        except OSError:
            # Periodic checks detect the same changes, only later.
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
        for _ in range(_MAX_DATAGRAMS):
            try:
                if self._socket is None or not self._socket.recv(_BUFFER_SIZE):
                    break
            except BlockingIOError:
                break
            except OSError:
                # The kernel's buffer has overflowed (ENOBUFS): something has changed.
                continue
        self._changed()

    def connectionLost(self, reason: Failure) -> None:
        """Close the socket: the reactor stops, or cannot read it."""
        self._close()

    def _close(self) -> None:
        closed, self._socket = self._socket, None
        if closed is not None:
            self._reactor.removeReader(self)
            closed.close()
