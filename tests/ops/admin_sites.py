"""An in-memory admin socket that any user can query over HTTP."""

from __future__ import annotations

import os
import struct

from twisted.internet.address import UNIXAddress
from twisted.internet.protocol import connectionDone

from tests.ops.test_http_site import TcpTransport
from tests.ops.test_meta import Answer, parse
from yurttunnel.ops.http_site import LimitedSite


class Handle:
    """The socket of a connection that was opened by ``user``, according to the kernel."""

    def __init__(self, user: int) -> None:
        self._user = user

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return process, user and group ids, as SO_PEERCRED does."""
        return struct.pack("3i", 4711, self._user, self._user)


class UnixTransport(TcpTransport):
    """The transport of a connection that was opened by ``user``."""

    def __init__(self, user: int) -> None:
        super().__init__(peerAddress=UNIXAddress(None))
        self._handle = Handle(user)

    def getHandle(self) -> Handle:
        """Return the socket."""
        return self._handle


class AdminSite:
    """A site that serves ``pages`` with the limits of a real process."""

    def __init__(self, reactor, pages) -> None:
        self._reactor = reactor
        self.site = LimitedSite(pages, reactor)

    def begin(self, data: bytes, user: int | None = None):
        """Connect and send ``data``; return both ends of the connection."""
        self._reactor.advance(0)
        transport = UnixTransport(os.geteuid() if user is None else user)
        channel = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        channel.dataReceived(data)
        return channel, transport

    def send(self, data: bytes, user: int | None = None) -> bytes:
        """Send ``data`` on a new connection; return the response."""
        channel, transport = self.begin(data, user)
        channel.connectionLost(connectionDone)
        return transport.value()

    def ask(self, target: str, method: str = "GET", user: int | None = None) -> Answer:
        """Request a page."""
        request = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        return parse(self.send(request.encode(), user))
