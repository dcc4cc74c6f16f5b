"""TCP socket options for detecting dead peers and limiting queues, and errors of exhaustion."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    ISystemHandle,
)
from zope.interface import implementer

# Values of Linux (include/uapi/linux/tcp.h), for a Python that was built without the names.
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})
"""Errors of a process or machine that has run out of a resource, which is not the peer's fault; the
last is from epoll_ctl(2) (``fs.epoll.max_user_watches``)."""

SESSION_DEAD_SECONDS = 25
"""The time after which a silent peer of a session is dead, the same as for the session's PINGs."""

SESSION_UNSENT_BYTES = 128 * 1024
"""The number of bytes of a session that may be queued unsent in the kernel.

Control frames and interactive streams cannot overtake bytes there. Twisted writes at most 128 KiB
in one call; a lower limit costs additional iterations of the reactor.
"""

LOCAL_KEEPALIVE_SECONDS = 15
"""The idle time and the interval of keepalive probes on sockets of callers and targets.

The default of Go's ``net.Dialer`` and ``net.ListenConfig``, which kubelets and kubectl use.
"""

LOCAL_KEEPALIVE_PROBES = 9
"""The number of unanswered probes after which such a socket is dead; from the same source."""


API_KEEPALIVE = (15, 10, 3)
"""The idle time, the interval, and the number of probes until a silent API is dead: 45 s."""

API_DEAD_SECONDS = 45.0
"""The time after which an API that acknowledges nothing is dead: as long as the probes take."""


def set_no_delay(sock: socket.socket) -> None:
    """Disable the Nagle algorithm (RFC 9293 section 3.7.4), to send small writes at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def set_keepalive(sock: socket.socket, idle: int, interval: int, probes: int) -> None:
    """Probe a silent peer after ``idle`` seconds, every ``interval``, ``probes`` times (tcp(7)).

    Each number is at least 1. The kernel's own defaults are 7200, 75 and 9: more than two hours.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)


def set_user_timeout(sock: socket.socket, seconds: float) -> None:
    """Abort the connection if sent data is unacknowledged for ``seconds`` (RFC 5482, tcp(7)).

    Otherwise the kernel retransmits for about 15 minutes. This also overrides the number of
    keepalive probes.
    """
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, round(seconds * 1000))


def tune_session_socket(sock: socket.socket) -> None:
    """Configure the socket of a session: low latency, short queue, early detection of a dead peer.

    The session's own PING decides when the peer is dead. These options cover connections without
    PING: those that are closing, and those in their handshake.
    """
    set_no_delay(sock)
    set_keepalive(sock, idle=10, interval=5, probes=(SESSION_DEAD_SECONDS - 10) // 5)
    set_user_timeout(sock, SESSION_DEAD_SECONDS)
    # The socket is writable only while fewer bytes are unsent (tcp(7)).
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, SESSION_UNSENT_BYTES)


def tune_local_socket(sock: socket.socket) -> None:
    """Configure the socket of a caller or a target; sockets other than TCP are left unchanged."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        tune_tcp_socket(sock)


def tune_tcp_socket(sock: socket.socket) -> None:
    """Configure a TCP socket of a caller or a target.

    The user timeout is not set: a reader may stall for any time, and kernels differ in whether time
    with a closed window counts.
    """
    set_no_delay(sock)
    set_keepalive(sock, LOCAL_KEEPALIVE_SECONDS, LOCAL_KEEPALIVE_SECONDS, LOCAL_KEEPALIVE_PROBES)


def tune_api_socket(sock: socket.socket) -> None:
    """Configure the socket of a connection to an API: low latency, detection of a dead peer."""
    set_no_delay(sock)
    set_keepalive(sock, *API_KEEPALIVE)
    set_user_timeout(sock, API_DEAD_SECONDS)


@implementer(IStreamClientEndpoint)
class TunedEndpoint:
    """Connects by ``endpoint``, and calls ``tune`` with the socket if the transport has one."""

    def __init__(
        self, endpoint: IStreamClientEndpoint, tune: Callable[[socket.socket], object]
    ) -> None:
        self._endpoint = endpoint
        self._tune = tune

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return self._endpoint.connect(protocolFactory).addCallback(self._connected)

    def _connected(self, protocol: Any) -> IProtocol:
        transport: Any = protocol.transport
        # Transports of Twisted and of this package that have a socket provide this interface.
        if ISystemHandle.providedBy(protocol.transport):
            self._tune(transport.getHandle())
            # Instead of the wrapper of Twisted's endpoints, which would pass on each read.
            transport.protocol = protocol
        connected: IProtocol = protocol
        return connected
