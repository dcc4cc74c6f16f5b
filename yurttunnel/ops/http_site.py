"""``twisted.web`` with the limits that a port for operators needs.

Clients get a fixed time for a request, few connections, small requests without bodies, and
HTTP/1.1 only.
"""

from __future__ import annotations

import io
from typing import Any

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import IResource
from twisted.web.server import Request, Site

REQUEST_SECONDS = 15
"""How long a connection may take to send its next request completely."""

MAX_CONNECTIONS = 64
"""Connections at a time: some scrapers, probes and people. More are closed at once."""

MAX_BODY_BYTES = 16 * 1024
"""What a client may send as a body; it is thrown away, since no page here reads one."""


class _LimitedChannel(http.HTTPChannel):
    """HTTP/1.1 with a fixed time for each request instead of an idle timeout.

    The limit of 16 KiB for the head is the one of twisted.web.
    """

    maxHeaders = 100
    # After the time is over: how long the rest of an answer may take to be sent.
    abortTimeout = 15

    site: LimitedSite

    def connectionMade(self) -> None:
        """Count the connection."""
        self.site.connections += 1
        super().connectionMade()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Count the connection no more."""
        self.site.connections -= 1
        super().connectionLost(reason)

    def resetTimeout(self) -> None:
        """Leave the deadline where it is: a byte now and then buys no more time."""

    def requestDone(self, request: http.Request) -> None:
        """Give the client time to read the last answer; twisted.web would wait for ever."""
        super().requestDone(request)
        if not self.persistent:
            self.setTimeout(REQUEST_SECONDS)


class _LimitedRequest(Request):
    """A request whose body is thrown away, and refused when it is large."""

    _body_bytes = 0

    def gotLength(self, length: int | None) -> None:
        """Provide an empty body; twisted.web would make a file on disk for a large one."""
        self.content = io.BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Throw ``data`` away; end the connection when there is too much of it."""
        before = self._body_bytes
        self._body_bytes += len(data)
        if before <= MAX_BODY_BYTES < self._body_bytes:
            self.channel.write(
                b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            self.channel.loseConnection()


class LimitedSite(Site):
    """A site with limits and without an access log, on ``clock`` instead of the global reactor.

    ``connections`` is how many are open.
    """

    noisy = False
    protocol = _LimitedChannel  # type: ignore[assignment] # twisted.web's own proxies to this class

    def __init__(
        self, resource: IResource, clock: IReactorTime, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        super().__init__(
            resource,
            requestFactory=_LimitedRequest,
            parsePOSTFormSubmission=False,
            timeout=REQUEST_SECONDS,
            reactor=clock,
        )
        self.connections = 0
        self._max_connections = max_connections

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Make the protocol of a connection, or refuse it (``None``) when there are too many."""
        if self.connections >= self._max_connections:
            return None
        return super().buildProtocol(addr)

    def acceptableProtocols(self) -> list[bytes]:
        """Offer HTTP/1.1 alone by ALPN; twisted.web adds h2 when that library is there."""
        return [b"http/1.1"]

    def log(self, request: http.Request) -> None:
        """Write no access log: scrapes and probes every few seconds would bury what matters."""
