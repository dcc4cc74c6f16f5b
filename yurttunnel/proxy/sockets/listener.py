"""Accepting connections, pausing when no more can be accepted, and rejecting them."""

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
from yurttunnel.tunnel.direct.ports import MAX_ACCEPTED_PER_EVENT

PAUSE_SECONDS = 0.1
"""How long accepting is paused, in seconds; clients wait in the kernel's queue meanwhile."""


@implementer(IReadWriteDescriptor)
class Listener:
    """Accepts connections on ``listening``, a non-blocking socket.

    ``accepted`` is called with each connection and the address and port of its peer, and must not
    fail. ``full_reason`` returns the reason why no more connections can be accepted, or ``None``.
    While there is a reason, or the system has no descriptors left, accepting is paused, and
    ``limited`` logs why.
    """

    def __init__(
        self,
        descriptors: DescriptorSet,
        listening: socket.socket,
        accepted: Callable[[socket.socket, tuple[str, int]], None],
        full_reason: Callable[[], str | None],
        limited: RateLimitedLog,
    ) -> None:
        self._descriptors = descriptors
        self._socket = listening
        self._accepted = accepted
        self._full_reason = full_reason
        self._limited = limited
        # As many as the last time, and more if all of them were there: a call without a result also
        # costs time.
        self._expected = 1
        self._paused: IDelayedCall | None = None
        self._is_refusing = False
        self._has_warned = False

    def start(self) -> None:
        """Accept from now on, or again; if the kernel rejects that, try again after a pause."""
        if self._paused is not None:
            return
        try:
            if self._is_refusing:
                listen(self._socket)
                self._is_refusing = False
            self._descriptors.addReader(self)
        except OSError as error:
            self._pause(os.strerror(error.errno or 0))

    def refuse(self) -> None:
        """Have the kernel refuse all clients at once until :meth:`start`, and keep the port."""
        self._stop_pause()
        if not self._is_refusing:
            self._is_refusing = True
            self._descriptors.remove(self)
            refuse(self._socket)

    def stop(self) -> None:
        """Accept the waiting clients, and no more; the owner closes the socket."""
        if self._paused is None and not self._is_refusing:
            self._expected = MAX_ACCEPTED_PER_EVENT
            while self._accept_some() == MAX_ACCEPTED_PER_EVENT:
                pass
        self._stop_pause()
        self._descriptors.remove(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "proxy socket"

    def doRead(self) -> None:
        """Accept waiting clients."""
        expected = self._expected
        accepted = self._accept_some()
        more = accepted == expected
        self._expected = min(2 * accepted, MAX_ACCEPTED_PER_EVENT) if more else max(1, accepted)

    def doWrite(self) -> None:
        """Do nothing: it is not registered for writing."""

    def connectionLost(self, reason: Failure) -> None:
        """Do nothing: the reactor stops, and the owner closes the socket."""

    def _accept_some(self) -> int:
        accept, accepted = self._socket.accept, self._accepted
        for count in range(self._expected):
            reason = self._full_reason()
            if reason is not None:
                # Only log it if a client may be waiting.
                if not count:
                    self._pause(reason)
                return count
            try:
                client, peer = accept()
            except (BlockingIOError, ConnectionAbortedError):
                return count
            except OSError as error:
                self._pause(os.strerror(error.errno or 0))
                return count
            client.setblocking(False)
            accepted(client, (peer[0], peer[1]))
        self._has_warned = False
        return self._expected

    def _pause(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._limited.warn(
                "Port {port} accepts no connections for now: {why}",
                port=self._socket.getsockname()[1],
                why=why,
            )
        self._descriptors.removeReader(self)
        self._paused = self._descriptors.callLater(PAUSE_SECONDS, self._resume)

    def _stop_pause(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.cancel()

    def _resume(self) -> None:
        self._paused = None
        self.start()
