"""A client of the Kubernetes API: HTTP/1.1 and JSON, over keep-alive connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from service_identity import VerificationError
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel import __version__
from yurttunnel.http.client import ClientConnection, WrittenRequest
from yurttunnel.http.client_connect import HTTPSConnection, TLSFailed, open_connection
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import ConnectionPool, PoolBusy, PoolSettings
from yurttunnel.http.simple_client import Response, send, write_whole_request
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import Credentials, CredentialsUnavailable
from yurttunnel.kube.endpoints import CONNECT_SECONDS, ApiEndpoint, host_field
from yurttunnel.kube.errors import ApiUnreachable, WatchInterrupted
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import Object, Resource
from yurttunnel.kube.responses import Body, Events, PageLimits, described, error_response
from yurttunnel.ops.timeouts import all_fired_within
from yurttunnel.tunnel.reactor import IReactor

CALL_SECONDS = 30.0
"""The timeout of a call; for a watch, until its response begins."""

CLOSE_SECONDS = 1.0
"""The time for the API to close its connections."""

WATCH_SLACK_SECONDS = 30.0
"""The extra time of a watch beyond its requested timeout."""

MAX_IDLE = 4
"""The maximum number of idle connections."""

IDLE_SECONDS = 60.0

POOL = PoolSettings(max_per_key=MAX_IDLE, idle_timeout=IDLE_SECONDS)
"""Idle connections are closed before the API closes them, which is after 90 s (``IdleTimeout`` of
k8s.io/apiserver pkg/server/secure_serving.go). Connections in use only count against the limit on
all connections, so no call waits in a queue."""

HEAD_LIMITS = HeadLimits(max_bytes=64 * 1024, max_fields=200)
"""The limits of response heads. Those of the API have less than 1 KiB, plus warnings (KEP-1693)."""

_RETRIABLE_METHODS = frozenset({b"GET", b"DELETE"})
"""The methods that are retried if the API closes an idle connection instead of responding."""

_JSON = b"application/json"

_CLOSED = "the client of the API has been closed"

_CONNECTION_ERRORS = (
    ConnectError,
    ConnectionClosed,
    ExchangeFailed,
    PoolBusy,
    TLSFailed,
    VerificationError,
    CredentialsUnavailable,
    # Files that cannot be read, and names that cannot be resolved.
    OSError,
)

_Result = TypeVar("_Result")
_Query = Mapping[str, str]


@implementer(IKubeClient)
class KubeClient:
    """Sends requests to the API of ``configuration``; call :meth:`close` at the end.

    ``endpoint`` makes the connections, by default over TCP and TLS. ``program`` is the product in
    ``User-Agent``, by which yurthub distinguishes its clients. The first ``skip`` addresses of the
    API's name are dialed last, and one more after calls that failed.
    """

    def __init__(
        self,
        reactor: IReactor,
        configuration: KubeConfiguration,
        endpoint: IStreamClientEndpoint | None = None,
        program: str = "yurttunnel",
        skip: int = 0,
    ) -> None:
        self._reactor = reactor
        self._configuration = configuration
        self._prefix = urlsplit(configuration.host).path
        self._program = f"{program}/{__version__}".encode("ascii")
        self._api = ApiEndpoint(reactor, configuration, self._drop_connections, skip)
        self._endpoint = endpoint or self._api
        # Connections of an earlier generation are not reused.
        self._generation = object()
        self._connections: set[_Connection] = set()
        self._pool: ConnectionPool[object] = ConnectionPool(
            reactor,
            self._connect,
            POOL,
            may_keep=lambda key: key is self._generation,
            group_of=lambda key: None,
        )
        self._page_limits = PageLimits()

    def close(self) -> Deferred[None]:
        """Close all connections; calls in progress and later calls fail.

        Connections that an unreachable API does not close in time are aborted.
        """
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        self._pool.close()
        await all_fired_within(
            self._reactor, CLOSE_SECONDS, [each.ended for each in self._connections]
        )
        for connection in list(self._connections):
            connection.abort()

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Deferred[Object]:
        return self._call("GET", resource.path(namespace, name))

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int | None = None,
        continue_token: str = "",
    ) -> Deferred[Object]:
        """Read a list or a page of it; pages are smaller than ``limit`` if objects are large."""
        query = _selectors(label_selector, field_selector)
        if limit is not None:
            query["limit"] = str(self._page_limits.limit(resource, limit))
        if continue_token:
            query["continue"] = continue_token

        def read(data: bytes) -> Object:
            page = _object(data)
            self._page_limits.seen(resource, len(data), page)
            return page

        return self._call("GET", resource.path(namespace), query, read=read)

    def create(
        self, resource: Resource, body: Object, namespace: str | None = None
    ) -> Deferred[Object]:
        if namespace is None and resource.namespaced:
            namespace = body.get("metadata", {}).get("namespace")
        return self._call("POST", resource.path(namespace), body=resource.typed(body))

    def update(
        self, resource: Resource, body: Object, subresource: str | None = None
    ) -> Deferred[Object]:
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], subresource)
        return self._call("PUT", path, body=resource.typed(body))

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
    ) -> Deferred[None]:
        query = {} if grace is None else {"gracePeriodSeconds": str(grace)}
        return self._call("DELETE", resource.path(namespace, name), query, read=lambda data: None)

    def watch(
        self,
        resource: Resource,
        on_event: Callable[[str, Object], object],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str,
        timeout: float,
    ) -> Deferred[None]:
        """Watch changes; a watch without a response fails with ``ApiUnreachable``.

        A watch that loses its connection after the response has begun fails with
        ``WatchInterrupted``.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout))),
            **_selectors(label_selector, field_selector),
        }
        path = resource.path(namespace)
        what = f"watch of {self._configuration.host}{path}"

        async def run() -> None:
            response = await self._with_timeout(
                CALL_SECONDS, what, self._get_response("GET", f"{path}?{urlencode(query)}", None)
            )
            events = Events(on_event, lambda: response.ended)
            reading = _read_events(response, events)
            await self._with_timeout(timeout + WATCH_SLACK_SECONDS, what, reading)

        return Deferred.fromCoroutine(run())

    # -- calls ---------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        query: _Query | None = None,
        body: Object | None = None,
        read: Callable[[bytes], Any] | None = None,
    ) -> Deferred[Any]:
        what = f"{method} {self._configuration.host}{path}"
        target = f"{path}?{urlencode(query)}" if query else path

        async def run() -> Any:
            response = await self._get_response(method, target, body)
            return (read or _object)(await _read_body(response))

        return Deferred.fromCoroutine(self._with_timeout(CALL_SECONDS, what, run()))

    async def _with_timeout(
        self, seconds: float, what: str, work: Coroutine[Any, Any, _Result]
    ) -> _Result:
        """Await ``work`` with a timeout, and convert all connection errors to one type."""
        kind, skip = ApiUnreachable, self._api.skip
        try:
            return await Deferred.fromCoroutine(work).addTimeout(seconds, self._reactor)
        except DeferredTimeout:
            problem = f"no answer within {seconds:.0f} s"
        except ApiUnreachable as error:
            kind, problem = type(error), str(error)
        except _CONNECTION_ERRORS as error:
            problem = described(error)
        # Calls that fail together skip one address of the API's name, not one each.
        if self._api.skip == skip:
            self._api.skip += 1
        # Other idle connections are probably dead, too, and each would cost another call.
        self._drop_connections()
        raise kind(f"{what}: {problem}")

    async def _get_response(self, method: str, target: str, body: Object | None) -> Response:
        """Return a successful response, whose body is not read yet.

        After a 401, the credentials may be stale, or not known to the API yet: they are renewed and
        the request is retried once.
        """
        source = self._configuration.credentials
        credentials = await source.current(self._reactor)
        response = await self._request(method, target, body, credentials)
        if response.status == 401:
            await _read_body(response)
            source.forget(credentials)
            self._drop_connections()
            credentials = await source.current(self._reactor)
            response = await self._request(method, target, body, credentials)
        if 200 <= response.status <= 299:
            return response
        data = await _read_body(response)
        if response.status < 400:
            # The API never redirects, and following a redirect would send the token to another
            # host.
            raise ApiUnreachable(f"it is answered with {response.status}, which is no API's answer")
        raise error_response(response.head, data)

    async def _request(
        self, method: str, target: str, body: Object | None, credentials: Credentials
    ) -> Response:
        self._api.use(credentials)
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        try:
            request = self._request_head(method, target, credentials.token, data)
        except ValueError as error:
            raise ApiUnreachable(f"it cannot be queried: {error}") from None
        fresh = False
        while True:
            connection = await self._connection(fresh)
            is_kept = connection.requests > 0
            try:
                return await send(connection, request, data)
            except ExchangeFailed as error:
                if not (is_kept and error.unanswered and request.method in _RETRIABLE_METHODS):
                    raise
            fresh = True

    def _request_head(self, method: str, target: str, token: str, data: bytes) -> WrittenRequest:
        """Encode a request; raises ``ValueError`` for invalid characters."""
        fields = [
            (b"Host", host_field(self._configuration.host)),
            (b"Accept", _JSON),
            (b"User-Agent", self._program),
        ]
        if token:
            fields.append((b"Authorization", b"Bearer " + token.encode()))
        if data:
            fields.append((b"Content-Type", _JSON))
        path = f"{self._prefix}{target}".encode("ascii")
        return write_whole_request(method.encode("ascii"), path, fields, data)

    async def _connection(self, fresh: bool) -> ClientConnection:
        """Return a connection for one request, which has to be sent at once."""
        if self._pool.draining:
            raise ApiUnreachable(_CLOSED)
        try:
            taken = self._pool.acquire(self._generation, fresh=fresh, long_running=True)
            return await taken if isinstance(taken, Deferred) else taken
        except CancelledError:
            if self._pool.draining:
                # The pool cancelled this, not the caller.
                raise ApiUnreachable(_CLOSED) from None
            raise

    def _connect(self, key: object, caller: Hashable) -> Deferred[ClientConnection]:
        opening = Deferred.fromCoroutine(open_connection(self._endpoint, self._make_connection))
        return opening.addTimeout(CONNECT_SECONDS, self._reactor).addErrback(_not_connected)

    def _make_connection(self) -> ClientConnection:
        connection = _Connection(self._reactor, self._connections.discard)
        self._connections.add(connection)
        return connection

    def _drop_connections(self) -> None:
        """Make later calls use new connections."""
        self._generation = object()
        self._pool.close_idle()


class _Connection(HTTPSConnection):
    """A connection with a ``Deferred`` that fires when it has closed."""

    def __init__(self, clock: IReactorTime, forget: Callable[[_Connection], object]) -> None:
        super().__init__(clock, _error_text, HEAD_LIMITS)
        self.ended: Deferred[None] = Deferred()
        self._forget = forget

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self._forget(self)
        self.ended.callback(None)


def _not_connected(failure: Failure) -> Failure:
    if failure.check(DeferredTimeout):
        return Failure(ApiUnreachable(f"no connection within {CONNECT_SECONDS:g} s"))
    return failure


def _error_text(failure: Failure) -> str:
    return described(cast("BaseException", failure.value))


async def _read_events(response: Response, events: Events) -> None:
    try:
        await response.read(events.take)
    except ExchangeFailed as error:
        raise WatchInterrupted(described(error)) from None
    events.end()


async def _read_body(response: Response) -> bytes:
    body = Body()
    await response.read(body.take)
    return body.whole()


def _object(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ApiUnreachable(f"the answer is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiUnreachable("the answer is not an object")
    return found


def _selectors(labels: str, fields: str) -> dict[str, str]:
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}
