"""Establish client connections over any endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection

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
