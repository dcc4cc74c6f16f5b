"""Client connections over any endpoint: establishing them, and readable errors of TLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.head import HeadLimits

Connection = TypeVar("Connection", bound=ClientConnection)


async def open_connection(
    endpoint: IStreamClientEndpoint, make: Callable[[], Connection]
) -> Connection:
    """Return a connection built by ``make``, connected by ``endpoint``, after the TLS handshake.

    Fails as the endpoint does, or with the reason why the connection was lost. There is no
    timeout; cancelling aborts the connection.
    """
    factory = Factory.forProtocol(make)
    # Otherwise Twisted logs two lines for each connection.
    factory.noisy = False
    connection = cast("Connection", await _cancellable(endpoint.connect(factory)))
    try:
        await connection.when_ready()
    except BaseException:
        connection.abort()
        raise
    return connection


def _cancellable(attempt: Deferred[Any]) -> Deferred[Any]:
    """Return a ``Deferred`` that fails with ``CancelledError`` when it is cancelled.

    Endpoints fail with other errors on cancellation, which look like a failed connection.
    """
    cancelled = False

    def cancel(_: object) -> None:
        nonlocal cancelled
        cancelled = True
        attempt.cancel()

    result: Deferred[Any] = Deferred(cancel)

    def failed(failure: Failure) -> None:
        result.errback(CancelledError() if cancelled else failure)

    _ = attempt.addCallbacks(result.callback, failed)
    return result


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
