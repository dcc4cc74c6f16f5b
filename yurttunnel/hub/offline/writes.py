"""Writes while offline: rejected, except those that the node needs to keep running.

Success for a write that has not reached the API would mislead the client. Exceptions are Events,
which are sent later; requests about tokens; and the kubelet's own Node, which it creates at
startup: if the Node is cached, it exists already, as the API would respond, and the kubelet
continues. The kubelet's Lease is served elsewhere.
"""

from __future__ import annotations

from contextlib import suppress

from yurttunnel.http.errors import ApiFailure
from yurttunnel.http.request_body import BodyTooLarge, read_body
from yurttunnel.hub.cache.interfaces import Collection, ICache
from yurttunnel.hub.offline.event_store import EventStore, is_event
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.lookup import KUBELET
from yurttunnel.hub.offline.owners import NODE
from yurttunnel.hub.offline.token_responder import TokenResponder, is_token_request, is_token_review
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.requests import HubCall, ResourceType

MAX_BODY = 128 * 1024
"""Maximum size of a request body in bytes; an Event or a review has a few thousand, and parsing a
megabyte of them would block the reactor for a tenth of a second."""

NODES = ResourceType("", "v1", "nodes")


class Writes:
    """Serves writes; ``node`` is the name of the node."""

    def __init__(
        self,
        node: str,
        cache: ICache,
        policy: Policy,
        events: EventStore,
        tokens: TokenResponder,
        failures: OfflineFailures,
    ) -> None:
        self._node = node
        self._cache = cache
        self._policy = policy
        self._events = events
        self._tokens = tokens
        self._failures = failures

    async def write(self, call: HubCall, owner: str) -> None:
        """Respond to a write, or raise ``RequestFailed``, as for most."""
        request = call.request
        if is_event(request) and request.verb == "create":
            self._events.store(call, await _body(call), owner)
        elif owner == NODE and is_token_review(request):
            await self._tokens.review(call, await _body(call))
        elif owner == NODE and is_token_request(request):
            await self._tokens.request(call, await _body(call))
        else:
            # Read to its end: a client that is still sending may not see the response.
            with suppress(BodyTooLarge):
                await _body(call)
            raise await self._failure(call, owner)

    async def _failure(self, call: HubCall, owner: str) -> ApiFailure:
        """Return the failure of the write."""
        request = call.request
        if is_event(request) and request.verb in ("update", "patch"):
            return self._failures.not_found(request)
        is_kubelets = call.caller.component == KUBELET and owner == NODE
        if is_kubelets and request.resource == NODES and request.verb == "create":
            # A kubelet may create only its own Node (NodeRestriction).
            client = self._policy.client(call.caller, owner)
            for form in ("protobuf", "json"):
                collection = Collection(client, str(NODES), form)
                if await self._cache.get(collection, "", self._node) is not None:
                    return self._failures.already_exists(request, self._node)
        return self._failures.not_written(request)


async def _body(call: HubCall) -> bytes:
    """Return the body of a request; it may have been read already for an API server that failed."""
    if call.body is None:
        return await read_body(call.exchange, MAX_BODY)
    if len(call.body) > MAX_BODY:
        raise BodyTooLarge(MAX_BODY)
    return call.body
