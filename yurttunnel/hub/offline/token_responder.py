"""The kubelet's requests about tokens: TokenReviews, and TokenRequests for service accounts.

Both are served only for the node itself. A SubjectAccessReview is not: it gets 503. The hub cannot
know that a user is allowed, and the kubelet would cache "denied" after the cloud is reachable
again, while it retries a failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import MAX_TOKEN
from yurttunnel.hub.cache.interfaces import Collection, ICache
from yurttunnel.hub.cache.selectors import PODS
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.lookup import KUBELET, number
from yurttunnel.hub.offline.owners import NODE, Owners
from yurttunnel.hub.offline.placeholder import LIFETIME, PlaceholderTokens
from yurttunnel.hub.offline.token_bodies import (
    TokenRequest,
    service_account_of,
    token_request,
    token_review,
)
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.callers import SERVICE_ACCOUNT, groups_of
from yurttunnel.hub.request.requests import ApiRequest, Caller, HubCall
from yurttunnel.kube.protobuf_fields import BadBody
from yurttunnel.ops.clocks import timestamp

GROUP = "authentication.k8s.io"
_VERSION = f"{GROUP}/v1"


class TokenResponder:
    """Serves these requests; ``placeholders`` are ``None`` if none are issued."""

    def __init__(
        self,
        cache: ICache,
        policy: Policy,
        owners: Owners,
        failures: OfflineFailures,
        placeholders: PlaceholderTokens | None,
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._owners = owners
        self._failures = failures
        self._placeholders = placeholders

    async def review(self, call: HubCall, body: bytes) -> None:
        """Respond to a TokenReview: authenticated if it is an accepted service account token.

        Only the API knows the names of other users. The audiences of a token are not known here, so
        a review for specific audiences is never authenticated.
        """
        try:
            question = token_review(_content_type(call), body)
        except BadBody as error:
            _reject("TokenReview", error)
        # A longer token was never accepted here, and must not be remembered.
        can_be_known = 0 < len(question.token) <= MAX_TOKEN
        owner = await self._owners.accepted(question.token) if can_be_known else None
        if owner is None or not owner.startswith(SERVICE_ACCOUNT) or question.audiences:
            status: dict[str, object] = {
                "authenticated": False,
                "error": str(self._failures.unauthorized("this token is not known here")),
            }
        else:
            status = {
                "authenticated": True,
                "user": {"username": owner, "groups": groups_of(owner)},
            }
        _respond(call, "TokenReview", {}, {}, status)

    async def request(self, call: HubCall, body: bytes) -> None:
        """Respond to a TokenRequest with a placeholder, if a pod of this node uses the account.

        The API has the same rule: a node gets tokens only for pods that it runs (NodeRestriction).
        """
        if self._placeholders is None:
            raise self._failures.not_written(call.request)
        try:
            question = token_request(_content_type(call), body)
        except BadBody as error:
            _reject("TokenRequest", error)
        request = call.request
        if await self._account_of(request.namespace, question.pod) != request.name:
            raise self._failures.not_running(request, question.pod)
        token, expires = self._placeholders.issue(
            request.namespace, request.name, question.audiences
        )
        _respond(
            call,
            "TokenRequest",
            {"name": request.name, "namespace": request.namespace},
            _spec(question),
            {"token": token, "expirationTimestamp": timestamp(expires)},
        )

    async def _account_of(self, namespace: str, pod: str) -> str | None:
        """Return the service account of a pod, from the newest state that the kubelet has seen."""
        client = self._policy.client(Caller(KUBELET), NODE)
        accounts: dict[int, str] = {}
        for form in ("json", "protobuf"):
            stored = await self._cache.get(Collection(client, str(PODS), form), namespace, pod)
            if stored is not None:
                with suppress(BadBody):
                    account = service_account_of(form, stored.item.body)
                    accounts[number(stored.item.version)] = account
        return accounts[max(accounts)] if accounts else None


def is_token_review(request: ApiRequest) -> bool:
    """Return whether a request creates a TokenReview."""
    return _creates(request, GROUP, "tokenreviews")


def is_token_request(request: ApiRequest) -> bool:
    """Return whether a request creates a token of a service account."""
    return request.subresource == "token" and _creates(request, "", "serviceaccounts")


def _creates(request: ApiRequest, group: str, name: str) -> bool:
    resource = request.resource
    return (
        request.verb == "create"
        and resource is not None
        and (resource.group, resource.name) == (group, name)
    )


def _spec(question: TokenRequest) -> Mapping[str, object]:
    bound = {"kind": "Pod", "apiVersion": "v1", "name": question.pod}
    return {
        "audiences": list(question.audiences),
        "expirationSeconds": LIFETIME,
        "boundObjectRef": bound,
    }


def _respond(
    call: HubCall,
    kind: str,
    metadata: Mapping[str, object],
    spec: Mapping[str, object],
    status: Mapping[str, object],
) -> None:
    """Respond in JSON, which clients that send protobuf accept, too."""
    review = {"kind": kind, "apiVersion": _VERSION, "metadata": metadata}
    body = json.dumps({**review, "spec": spec, "status": status}).encode()
    call.exchange.respond(201, [(b"Content-Type", b"application/json")], body)


def _content_type(call: HubCall) -> bytes:
    return b"".join(call.exchange.head.values(b"content-type")[:1])


def _reject(kind: str, error: BadBody) -> NoReturn:
    raise RequestFailed(400, f"the body is not a {kind}: {error}") from None
