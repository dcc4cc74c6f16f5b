"""Accepting connections, resting where none can be taken, and having them refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReadWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.proxy.sockets.listening import listen, refuse
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.ports import MOST_ACCEPTED

REST = 0.1
"""Seconds until it is tried again to accept: clients meanwhile wait in the kernel's queue."""


@implementer(IReadWriteDescriptor)
class Listener:
    """Accepts what comes to ``listening``, a socket that does not block.

    ``accepted`` is given each connection with the text and port of its peer, and must not fail.
    ``why_full`` tells in a sentence why there can be no more of them; ``None`` where there can.
    While it is full, or the system has no descriptors, it rests, which ``limited`` tells.
    """

    def __init__(
        self,
        descriptors: DescriptorSet,
        listening: socket.socket,
        accepted: Callable[[socket.socket, tuple[str, int]], None],
        why_full: Callable[[], str | None],
        limited: RateLimitedLog,
    ) -> None:
        self._descriptors = descriptors
        self._socket = listening
        self._accepted = accepted
        self._why_full = why_full
        self._limited = limited
        # As many as the last time, and more if there were that many: to ask in vain costs, too.
        self._expected = 1
        self._resting: IDelayedCall | None = None
        self._is_refusing = False
        self._has_told = False

    def start(self) -> None:
        """Accept from now on, or again; tried again where the kernel does not let it."""
        if self._resting is not None:
            return
        try:
            if self._is_refusing:
                listen(self._socket)
                self._is_refusing = False
            self._descriptors.addReader(self)
        except OSError as error:
            self._rest(os.strerror(error.errno or 0))

    def refuse(self) -> None:
        """Have the kernel refuse all clients at once, until :meth:`start`; the port is kept."""
        self._stop_resting()
        if not self._is_refusing:
            self._is_refusing = True
            self._descriptors.remove(self)
            refuse(self._socket)

    def stop(self) -> None:
        """Accept what waits, and no more; the socket stays the owner's to close."""
        if self._resting is None and not self._is_refusing:
            self._expected = MOST_ACCEPTED
            while self._accept_some() == MOST_ACCEPTED:
                pass
        self._stop_resting()
        self._descriptors.remove(self)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """Name it in the log."""
        return "proxy socket"

    def doRead(self) -> None:
        """Accept what waits."""
        expected = self._expected
        accepted = self._accept_some()
        more = accepted == expected
        self._expected = min(2 * accepted, MOST_ACCEPTED) if more else max(1, accepted)

    def doWrite(self) -> None:
        """Do nothing: it is not registered for writing."""

    def connectionLost(self, reason: Failure) -> None:
        """Do nothing: the reactor stops, and the owner closes."""

    def _accept_some(self) -> int:
        accept, accepted = self._socket.accept, self._accepted
        for count in range(self._expected):
            full = self._why_full()
            if full is not None:
                # That matters when somebody is there.
                if not count:
                    self._rest(full)
                return count
            try:
                client, peer = accept()
            except (BlockingIOError, ConnectionAbortedError):
                return count
            except OSError as error:
                self._rest(os.strerror(error.errno or 0))
                return count
            client.setblocking(False)
            accepted(client, (peer[0], peer[1]))
        self._has_told = False
        return self._expected

    def _rest(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            self._limited.warn(
                "Port {port} accepts no connections for now: {why}",
                port=self._socket.getsockname()[1],
                why=why,
            )
        self._descriptors.removeReader(self)
        self._resting = self._descriptors.callLater(REST, self._wake)

    def _stop_resting(self) -> None:
        resting, self._resting = self._resting, None
        if resting is not None:
            resting.cancel()

    def _wake(self) -> None:
        self._resting = None
        self.start()
