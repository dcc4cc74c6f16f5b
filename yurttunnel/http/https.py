"""HTTPS connections with readable TLS errors."""

from __future__ import annotations

from collections.abc import Callable

from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.head import HeadLimits


class TLSFailed(Exception):
    """TLS has failed, during or after the handshake; the message says why."""


class HTTPSConnection(ClientConnection):
    """A connection whose TLS errors are described by ``explain``.

    This applies to requests in progress too: with TLS 1.3 a server rejects the client certificate
    after the client's side of the handshake is complete.
    """

    def __init__(
        self,
        clock: IReactorTime,
        explain: Callable[[Failure], str],
        limits: HeadLimits | None = None,
    ) -> None:
        super().__init__(clock, limits)
        self._explain = explain

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reason.check(SSL.Error):
            reason = Failure(TLSFailed(self._explain(reason)))
        super().connectionLost(reason)
