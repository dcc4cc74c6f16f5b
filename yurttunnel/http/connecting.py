"""Connections on which requests can be made, by any endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection

Connection = TypeVar("Connection", bound=ClientConnection)


async def connected(endpoint: IStreamClientEndpoint, make: Callable[[], Connection]) -> Connection:
    """Return what ``make`` makes, connected by ``endpoint``, after the handshake of TLS.

    Fails as the endpoint does, or with the reason for which the connection was lost. Whoever
    connects bounds the time: what is cancelled leaves no connection.
    """
    factory = Factory.forProtocol(make)
    # Without two lines in the log for each connection.
    factory.noisy = False
    connection = cast("Connection", await _cancellable(endpoint.connect(factory)))
    try:
        await connection.when_ready()
    except BaseException:
        connection.abort()
        raise
    return connection


def _cancellable(attempt: Deferred[Any]) -> Deferred[Any]:
    """Have it end in ``CancelledError`` when it is cancelled.

    Endpoints make other errors of that, which look like those of a connection that failed.
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
