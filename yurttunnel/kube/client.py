"""A client of the Kubernetes API: HTTP/1.1 and JSON, with connections that are kept."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.interfaces import IConsumer
from twisted.python.failure import Failure
from twisted.web.client import (
    Agent,
    HTTPConnectionPool,
    RequestTransmissionFailed,
    ResponseFailed,
    ResponseNeverReceived,
    _HTTP11ClientFactory,
)
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from yurttunnel import __version__
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import CredentialsUnavailable
from yurttunnel.kube.endpoints import ApiEndpoints
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.pages import PageLimits
from yurttunnel.kube.resources import Object, Resource
from yurttunnel.kube.responses import Body, Events, answered_error, described
from yurttunnel.ops.waiting import within
from yurttunnel.tunnel.reactor import IReactor

CALL_SECONDS = 30.0
"""How long a call may take; a watch until it begins."""

CLOSE_SECONDS = 1.0
"""In which time an API has to close its connections."""

WATCH_SLACK_SECONDS = 30.0
"""How much longer than was asked for a watch may take."""

_CONNECTIONS = 4
_KEPT_SECONDS = 60
"""Idle connections are closed before the API does it, which is after 90 s by default."""

_TROUBLE = (
    ConnectError,
    ConnectionClosed,
    RequestTransmissionFailed,
    ResponseFailed,
    ResponseNeverReceived,
    SSL.Error,
    VerificationError,
    CredentialsUnavailable,
    # Files that cannot be read, and names that cannot be resolved.
    OSError,
)

_Result = TypeVar("_Result")
_Query = Mapping[str, str]


@implementer(IKubeClient)
class KubeClient:
    """Asks the API of ``configuration``; :meth:`close` it at the end.

    ``endpoints`` makes the connections; without it they are by TCP and TLS. ``program`` is the
    product in ``User-Agent``, by which yurthub tells its clients apart.
    """

    def __init__(
        self,
        reactor: IReactor,
        configuration: KubeConfiguration,
        endpoints: IAgentEndpointFactory | None = None,
        program: str = "yurttunnel",
    ) -> None:
        self._reactor = reactor
        self._configuration = configuration
        self._user_agent = f"{program}/{__version__}"
        self._pool = _QuietPool(reactor)
        self._pool.maxPersistentPerHost = _CONNECTIONS
        self._pool.cachedConnectionTimeout = _KEPT_SECONDS
        self._endpoints = ApiEndpoints(reactor, configuration, self._drop_connections)
        self._agent = Agent.usingEndpointFactory(reactor, endpoints or self._endpoints, self._pool)
        self._page_limits = PageLimits()

    def close(self) -> Deferred[None]:
        """Close the connections that are kept; calls under way are their owners' to cancel.

        What an API that is out of reach does not close in time is aborted.
        """
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        closed = self._pool.closeCachedConnections()
        await within(self._reactor, CLOSE_SECONDS, [closed])
        self._endpoints.abort()

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
        """Read a list or a page of it; with ``limit``, pages are smaller if objects are big."""
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
        return self._call("POST", resource.path(namespace), body=_typed(resource, body))

    def update(
        self, resource: Resource, body: Object, subresource: str | None = None
    ) -> Deferred[Object]:
        """Replace an object, or a subresource of it."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], subresource)
        return self._call("PUT", path, body=_typed(resource, body))

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
        """Follow changes; a watch that nothing is heard of ends with ``ApiUnreachable``."""
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
            response = await self._within(
                CALL_SECONDS, what, self._answer("GET", f"{path}?{urlencode(query)}", None)
            )
            events = Events(on_event)
            response.deliverBody(events)
            await self._within(timeout + WATCH_SLACK_SECONDS, what, events.done)

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
            response = await self._answer(method, target, body)
            return (read or _object)(await _body(response))

        return Deferred.fromCoroutine(self._within(CALL_SECONDS, what, run()))

    async def _within(self, seconds: float, what: str, work: Awaitable[_Result]) -> _Result:
        """Wait for ``work`` at most so long; give all troubles of connections one name."""
        waiting = work if isinstance(work, Deferred) else Deferred.fromCoroutine(cast("Any", work))
        try:
            return cast("_Result", await waiting.addTimeout(seconds, self._reactor))
        except DeferredTimeout:
            problem = f"no answer within {seconds:.0f} s"
        except ApiUnreachable as error:
            problem = str(error)
        except _TROUBLE as error:
            problem = described(error)
        # Those that are kept are mostly dead, too, and each would cost one more call.
        self._drop_connections()
        raise ApiUnreachable(f"{what}: {problem}")

    async def _answer(self, method: str, target: str, body: Object | None) -> IResponse:
        """Get an answer that is no error, with its body still to be read.

        An API that does not know us may not know yet, or no longer, what we have: that is
        renewed once.
        """
        response = await self._request(method, target, body)
        if response.code == 401:
            await _body(response)
            self._configuration.credentials.forget()
            self._drop_connections()
            response = await self._request(method, target, body)
        if 200 <= response.code <= 299:
            return response
        data = await _body(response)
        if response.code < 400:
            # Nobody redirects an API; who follows sends the token to somebody else.
            raise ApiUnreachable(f"it is answered with {response.code}, which is no API's answer")
        raise answered_error(response, data)

    async def _request(self, method: str, target: str, body: Object | None) -> IResponse:
        credentials = await self._configuration.credentials.current(self._reactor)
        self._endpoints.use(credentials)
        headers = {"Accept": ["application/json"], "User-Agent": [self._user_agent]}
        if credentials.token:
            headers["Authorization"] = [f"Bearer {credentials.token}"]
        producer = None
        if body is not None:
            headers["Content-Type"] = ["application/json"]
            producer = _WholeBody(json.dumps(body, separators=(",", ":")).encode())
        url = f"{self._configuration.host}{target}"
        asked = self._agent.request(method.encode(), url.encode(), Headers(headers), producer)
        return await _cancellable(asked)

    def _drop_connections(self) -> None:
        """Have the next calls make connections of their own."""
        # When they are closed is nobody's concern, and that they are lost is no error.
        _ = self._pool.closeCachedConnections().addErrback(lambda failure: None)


class _QuietFactory(_HTTP11ClientFactory):
    """Makes what speaks on a connection, without two lines in the log for each."""

    noisy = False


class _QuietPool(HTTPConnectionPool):
    """Keeps connections; there is no public way to have others made."""

    _factory = _QuietFactory


@implementer(IBodyProducer)
class _WholeBody:
    """The body of a request, which is small and written at once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        consumer.write(self._data)
        return succeed(None)

    def pauseProducing(self) -> None:
        """Do nothing: all has been written."""

    def resumeProducing(self) -> None:
        """Do nothing: all has been written."""

    def stopProducing(self) -> None:
        """Do nothing: all has been written."""


def _cancellable(asked: Deferred[IResponse]) -> Deferred[IResponse]:
    """Have a request that is cancelled end with ``CancelledError``, as anything else does.

    Twisted's tells of the connection that was closed for it, as if that had been lost.
    """

    def cancel(answered: Deferred[IResponse]) -> None:
        answered.errback(CancelledError())
        asked.cancel()

    def answer(result: IResponse | Failure) -> None:
        if not answered.called:
            answered.callback(result)

    answered: Deferred[IResponse] = Deferred(cancel)
    _ = asked.addBoth(answer)
    return answered


def _body(response: IResponse) -> Deferred[bytes]:
    body = Body()
    response.deliverBody(body)
    return body.done


def _object(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ApiUnreachable(f"the answer is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiUnreachable("the answer is not an object")
    return found


def _typed(resource: Resource, body: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _selectors(labels: str, fields: str) -> dict[str, str]:
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}
