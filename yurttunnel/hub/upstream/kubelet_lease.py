"""The kubelet's requests for its Lease, which the hub serves and uses as the kubelet's heartbeat.

These requests never leave the node. The response has the Lease that the kubelet sent, in the same
media type, so they succeed online and offline. The hub renews the Lease in the cloud
(:mod:`yurttunnel.hub.upstream.node_lease`) as long as the kubelet keeps sending these requests.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed, IExchange
from yurttunnel.http.request_body import BodyTooLarge, read_body
from yurttunnel.hub.request.failures import send_failure
from yurttunnel.hub.request.requests import HubCall
from yurttunnel.hub.upstream.node_lease import LEASE_NAMESPACE
from yurttunnel.kube.resources import LEASES

MAX_LEASE = 64 * 1024
"""Maximum size of a Lease in bytes."""

_VERBS = frozenset({"get", "create", "update", "patch"})


class KubeletLease:
    """The Lease of ``node`` for its kubelet, which is alive for ``grace`` seconds after a request.

    This time also begins at the start: without any request the hub does not renew the Lease.
    """

    def __init__(self, clock: IReactorTime, node: str, grace: float) -> None:
        self._clock = clock
        self._node = node
        self._grace = grace
        self._last_request_at = clock.seconds()
        # The last Lease, with its media type.
        self._lease: tuple[bytes, bytes] | None = None

    def is_alive(self) -> bool:
        """Return whether the kubelet has sent a request for its Lease in time."""
        return self._clock.seconds() < self._last_request_at + self._grace

    def matches(self, call: HubCall) -> bool:
        """Return whether a request is the kubelet's, for its Lease."""
        request, resource = call.request, call.request.resource
        if resource is None or resource.name != LEASES.plural:
            return False
        return (
            resource.group == LEASES.group
            and request.namespace == LEASE_NAMESPACE
            and request.verb in _VERBS
            and request.name == ("" if request.verb == "create" else self._node)
            and call.caller.component == "kubelet"
            and call.caller.local
            and not call.caller.token
        )

    def respond(self, call: HubCall) -> None:
        """Respond to such a request."""
        self._last_request_at = self._clock.seconds()
        exchange = call.exchange
        if call.request.verb not in ("create", "update"):
            self._send_lease(exchange)
            return
        stored: Deferred[None] = read_body(exchange, MAX_LEASE).addCallback(self._store_lease, call)
        _ = stored.addErrback(_reject, exchange)

    def _send_lease(self, exchange: IExchange) -> None:
        if self._lease is None:
            # The kubelet creates one then.
            text = f'leases.coordination.k8s.io "{self._node}" not found'
            send_failure(exchange, RequestFailed(404, text))
        else:
            content_type, body = self._lease
            exchange.respond(200, [(b"Content-Type", content_type)], body)

    def _store_lease(self, body: bytes, call: HubCall) -> None:
        exchange = call.exchange
        content_type = exchange.head.values(b"content-type")[:1] or [b"application/json"]
        self._lease = content_type[0], body
        status = 201 if call.request.verb == "create" else 200
        exchange.respond(status, [(b"Content-Type", content_type[0])], body)


def _reject(failure: Failure, exchange: IExchange) -> None:
    failure.trap(BodyTooLarge, ExchangeFailed)
    if isinstance(failure.value, BodyTooLarge):
        send_failure(exchange, RequestFailed(failure.value.status, str(failure.value)))
