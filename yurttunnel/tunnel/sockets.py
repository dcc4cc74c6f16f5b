"""Options of TCP sockets: how soon a dead peer is noticed, what may queue; what may be lacking."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    ISystemHandle,
)
from zope.interface import implementer

# Numbers of Linux (include/uapi/linux/tcp.h) for a Python that was built without the names.
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC})
"""What the kernel says where this process or machine has no more of something, of which no peer is
to blame; the last is of epoll_ctl(2) (``fs.epoll.max_user_watches``)."""

SESSION_DEAD_SECONDS = 25
"""When a silent peer of a session counts as dead: as long as the session's own pings take."""

SESSION_UNSENT_BYTES = 128 * 1024
"""What of a session may wait unsent in the kernel.

Bytes there can no longer be overtaken by control frames and interactive streams. 128 KiB is
what Twisted hands over in one call at most; less costs extra turns of the reactor.
"""

LOCAL_KEEPALIVE_SECONDS = 15
"""Idle time and interval of keepalive probes on callers' and targets' sockets.

The default of Go's ``net.Dialer`` and ``net.ListenConfig``, which kubelets and kubectl live with.
"""

LOCAL_KEEPALIVE_PROBES = 9
"""Unanswered probes until such a socket is dead; the same source."""


API_KEEPALIVE = (15, 10, 3)
"""Idle seconds, seconds between probes, and probes, until a silent API counts as dead: 45 s."""

API_DEAD_SECONDS = 45.0
"""When an API that acknowledges nothing counts as dead: as long as the probes take."""


def set_no_delay(sock: socket.socket) -> None:
    """Send small writes at once (RFC 9293 section 3.7.4 calls the opposite the Nagle algorithm)."""
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
    """Break the connection when sent data stays unacknowledged for ``seconds`` (RFC 5482, tcp(7)).

    Without it the kernel sends again for about 15 minutes. It also overrides the number of
    keepalive probes.
    """
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, round(seconds * 1000))


def set_unsent_limit(sock: socket.socket, limit: int) -> None:
    """Call the socket writable only while less than ``limit`` bytes wait unsent (tcp(7))."""
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, limit)


def tune_session_socket(sock: socket.socket) -> None:
    """Set up the socket that carries a session: quick, short of queue, soon known to be dead.

    The session's own PING decides when the peer is dead. These options are for what PING does
    not see: a connection that is closing, and one whose handshake is not finished.
    """
    set_no_delay(sock)
    set_keepalive(sock, idle=10, interval=5, probes=(SESSION_DEAD_SECONDS - 10) // 5)
    set_user_timeout(sock, SESSION_DEAD_SECONDS)
    set_unsent_limit(sock, SESSION_UNSENT_BYTES)


def tune_local_socket(sock: socket.socket) -> None:
    """Set up the socket of a caller or a target; sockets other than TCP are left as they are."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        tune_tcp_socket(sock)


def tune_tcp_socket(sock: socket.socket) -> None:
    """Do the same for what is known to be of TCP.

    The user timeout is not set: a reader may stall for as long as it likes, and kernels differ
    in whether time with a closed window counts.
    """
    set_no_delay(sock)
    set_keepalive(sock, LOCAL_KEEPALIVE_SECONDS, LOCAL_KEEPALIVE_SECONDS, LOCAL_KEEPALIVE_PROBES)


def tune_api_socket(sock: socket.socket) -> None:
    """Set up the socket of a connection to an API: quick, and known to be dead in its time."""
    set_no_delay(sock)
    set_keepalive(sock, *API_KEEPALIVE)
    set_user_timeout(sock, API_DEAD_SECONDS)


@implementer(IStreamClientEndpoint)
class TunedEndpoint:
    """Connects by ``endpoint``, over sockets that ``tune`` sets up; others than those stay."""

    def __init__(
        self, endpoint: IStreamClientEndpoint, tune: Callable[[socket.socket], object]
    ) -> None:
        self._endpoint = endpoint
        self._tune = tune

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect a protocol of ``protocolFactory``."""
        return self._endpoint.connect(protocolFactory).addCallback(self._connected)

    def _connected(self, protocol: Any) -> IProtocol:
        # What has a socket, be it a transport of Twisted's or of this package.
        if ISystemHandle.providedBy(protocol.transport):
            self._tune(cast("socket.socket", protocol.transport.getHandle()))
        connected: IProtocol = protocol
        return connected
