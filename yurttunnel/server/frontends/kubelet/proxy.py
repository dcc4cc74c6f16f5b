"""The proxy: forwards a caller's request to its kubelet."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange, IRequestHandler
from yurttunnel.http.pool import ConnectionPool
from yurttunnel.http.relay import ForwardedRequest, Forwarding, Relay, RelaySettings
from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.pki.kubelets import KubeletContexts
from yurttunnel.server.frontends.calls import caller_key
from yurttunnel.server.frontends.kubelet.destination import PREFIX, Destination, destination_of
from yurttunnel.server.frontends.kubelet.kubelets import KubeletKey
from yurttunnel.server.frontends.kubelet.request import Handler, InterceptedRequest
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.request_ids import RequestIds

_REPLACED = frozenset({b"host", b"x-request-id"})
_REPLACED_WITH_AUTHORIZATION = _REPLACED | {b"authorization"}

log = Logger()


@implementer(IRequestHandler)
class Interceptor:
    """Sets the id of each request, and passes it to ``handler``, the chain of middlewares."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._request_ids = RequestIds()

    def request_received(self, exchange: IExchange) -> None:
        proposed = exchange.head.by_name.get(b"x-request-id", ())
        self._handler(InterceptedRequest(exchange, self._request_ids.from_caller(proposed)))


class KubeletProxy:
    """Forwards requests to kubelets, over connections of ``pool``; ``contexts`` are their TLS
    contexts.

    At most ``max_requests`` requests are in flight from callers with TLS, and as many from others;
    one caller may have as many as remain free. ``response_timeout`` is in seconds, from the end of
    a request to the head of its response; ``None`` is no timeout. It does not apply to requests
    that follow or watch.
    """

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        contexts: KubeletContexts,
        pool: ConnectionPool[KubeletKey],
        response_timeout: float | None,
        max_requests: int,
    ) -> None:
        self._registry = registry
        self._contexts = contexts
        self._pool = pool
        self._clock = clock
        # By whether the caller used TLS, so that a caller of one port cannot exhaust both.
        self._in_flight = {secure: SharedLimit(max_requests) for secure in (False, True)}
        # By timeout: requests in flight keep the timeout with which they began.
        self._relays: dict[float | None, Relay] = {}
        self.use_response_timeout(response_timeout)

    def use_response_timeout(self, seconds: float | None) -> None:
        """Apply the timeout to new requests."""
        if seconds not in self._relays:
            settings = RelaySettings(response_timeout=seconds)
            self._relays[seconds] = Relay(self._clock, settings)
        self._relay = self._relays[seconds]

    def handle(self, request: InterceptedRequest) -> None:
        """Forward a request, or respond with the error."""
        exchange = request.exchange
        caller = _caller_of(request)
        try:
            key = self._key_of(request)
            self._count(exchange, caller)
        except RequestFailed as error:
            exchange.fail(error.status, error.text)
            return
        _Forwarding(self._relay, self._pool, key, request, caller).begin()

    def _key_of(self, request: InterceptedRequest) -> KubeletKey:
        """Determine the destination of a request, and store it there."""
        head = request.exchange.head
        if head.method == b"CONNECT":
            raise RequestFailed(
                405,
                "this port accepts requests to kubelets, not CONNECT, which is served on"
                " --connect-endpoint",
            )
        destination = request.destination or head.derived(destination_of)
        request.destination = destination
        session = self._registry.find(destination.node)
        request.node = session.node
        trust = self._contexts.generation if request.exchange.secure else None
        return KubeletKey(session, destination.host, destination.port, trust)

    def _count(self, exchange: IExchange, caller: str) -> None:
        """Count a request until it ends; raises ``RequestFailed`` if its caller has too many."""
        in_flight = self._in_flight[exchange.secure]
        if not in_flight.take(caller):
            raise RequestFailed(
                503,
                f"{in_flight.used} of {in_flight.maximum} requests are in flight at this port, and"
                " one caller may use as many as remain free: try again when some of yours have"
                " ended",
            )
        exchange.on_end(lambda _: in_flight.add(caller, -1))

    def close(self) -> None:
        """Stop the timers."""
        for relay in self._relays.values():
            relay.close()


class _Forwarding(Forwarding):
    """A request to the kubelet with ``key``, charged to ``caller``."""

    origin: KubeletKey

    def __init__(
        self,
        relay: Relay,
        pool: ConnectionPool[KubeletKey],
        key: KubeletKey,
        request: InterceptedRequest,
        caller: str,
    ) -> None:
        super().__init__(relay, request.exchange, request.follows)
        self.origin = key
        assert request.destination is not None  # set with the key
        self.request = _request_to(
            request.exchange.head, request.destination, request.authorization_used
        )
        self.added = ((b"X-Request-Id", request.request_id.encode("ascii")),)
        self._pool = pool
        self._intercepted = request
        self._caller = caller

    def acquire(
        self, *, fresh: bool, upload: bool, upgrade: bool
    ) -> Deferred[ClientConnection] | ClientConnection:
        return self._pool.acquire(
            self.origin,
            fresh=fresh,
            long_running=self.long_running,
            upload=upload,
            upgrade=upgrade,
            caller=self._caller,
        )

    def describe(self, failure: Failure) -> tuple[int, str]:
        error = failure.value
        if isinstance(error, RequestFailed):
            return error.status, error.text
        if isinstance(error, CancelledError):
            # The pool was closed; a caller whose connection was aborted may be notified later.
            return 503, "the server is stopping"
        log.failure(
            "Defect: connecting to the kubelet of {node} for {request_id} failed",
            failure,
            node=self._intercepted.node,
            request_id=self._intercepted.request_id,
        )
        return 500, "internal error: see the log of the server"


def _caller_of(request: InterceptedRequest) -> str:
    """Return the caller whose share a request is charged to."""
    return request.client or request.caller or caller_key(request.exchange.transport)


def _request_to(
    head: RequestHead, destination: Destination, authorization_used: bool
) -> ForwardedRequest:
    """Return the request for the kubelet, without its id.

    It has the fields that the caller sent, except those for the server. ``Host`` is the
    destination. ``Authorization`` is passed on if it is for the kubelet, but not if it was for the
    server: the server authenticates to kubelets by its own certificate, and they need not see the
    callers' credentials.
    """
    cached, kind = head.derived(_forwarded_requests), (destination, authorization_used)
    found = cached.get(kind)
    if found is None:
        replaced = _REPLACED_WITH_AUTHORIZATION if authorization_used else _REPLACED
        fields = [(b"Host", destination.authority.encode("ascii"))]
        for field in head.fields:
            name = field[0].lower()
            if name not in replaced and not name.startswith(PREFIX):
                fields.append(field)
        # Over time one head may be used for many pods.
        cached.clear()
        found = cached[kind] = ForwardedRequest(head.method, head.target, fields)
    return found


def _forwarded_requests(head: RequestHead) -> dict[tuple[Destination, bool], ForwardedRequest]:
    """Return the cache of a head's last request, by destination and use of credentials."""
    return {}
