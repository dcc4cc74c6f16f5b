"""Connections by HTTPS whose end is told in words that help."""

from __future__ import annotations

from collections.abc import Callable

from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.head import HeadLimits


class TLSFailed(Exception):
    """TLS has failed, in the handshake or after it; the text says why."""


class HTTPSConnection(ClientConnection):
    """A connection whose errors of TLS are put into words by ``explain``.

    Also for those who have a request on it: with TLS 1.3 a server refuses our certificate after
    our side of the handshake is over.
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
