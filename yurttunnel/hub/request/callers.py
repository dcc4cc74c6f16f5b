"""Callers, and the claims of bearer tokens.

Nothing is verified here. Only the API knows whether a token is valid, and who owns it.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import math
from base64 import urlsafe_b64decode
from functools import lru_cache
from typing import Any, NamedTuple

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import BadToken, bearer_token
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.requests import Caller

SERVICE_ACCOUNT = "system:serviceaccount:"
"""The prefix of service account names; ``NAMESPACE:NAME`` follows."""

PAGES = "yurthub-pages"
"""The component of the hub itself when its pages request data; nothing is cached for it."""


def groups_of(owner: str) -> list[str]:
    """Return the groups of a user with this name.

    For a service account the list is complete (k8s.io/apiserver pkg/authentication/serviceaccount).
    For other users it has only the group of all authenticated users.
    """
    groups = ["system:authenticated"]
    if not owner.startswith(SERVICE_ACCOUNT):
        return groups
    namespace = owner.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", *groups]


MAX_COMPONENT = 253
"""Maximum length of a component, in characters; it is a key of the cache."""

_TOKEN_PROTOCOL = b"base64url.bearer.authorization.k8s.io."
"""The prefix of a WebSocket subprotocol that contains a token (k8s.io/apiserver
pkg/authentication/request/websocket)."""


def caller_of(head: RequestHead, local: bool) -> Caller:
    """Return the caller; ``local`` says that the request arrived on a loopback listener.

    Raises ``RequestFailed`` (401) for an ``Authorization`` that is not a single bearer token, and
    for a token in a WebSocket subprotocol: such a request must not be served as the node's own.
    """
    agents = head.by_name.get(b"user-agent")
    component = _component(agents[0][: MAX_COMPONENT + 1]) if agents else ""
    wants_caching = b"edge-cache" in head.by_name and _requests_caching(head)
    if any(_TOKEN_PROTOCOL in value for value in head.by_name.get(b"sec-websocket-protocol", ())):
        raise RequestFailed(
            401, "the hub accepts tokens in Authorization, not in a WebSocket protocol"
        )
    if b"authorization" not in head.by_name:
        return Caller(component, "", local, wants_caching)
    try:
        token = bearer_token(head)
    except BadToken as error:
        raise RequestFailed(401, f"the credentials cannot be read: {error}") from None
    return Caller(component, token or "", local, wants_caching)


def _requests_caching(head: RequestHead) -> bool:
    """Return whether the head has upstream's ``Edge-Cache: true``."""
    return any(value.lower() == b"true" for value in head.values(b"edge-cache"))


@lru_cache(256)
def _component(agent: bytes) -> str:
    words = agent.decode("latin-1").split(None, 1)
    return words[0].partition("/")[0].lower()[:MAX_COMPONENT] if words else ""


_END_OF_TIME = 2**62
"""Seconds since 1970; a later expiry counts as none."""


class Token(NamedTuple):
    """The claims of a bearer token, which are not verified.

    ``digest`` is the SHA-256 of the token. ``expires`` is in seconds since 1970, or infinite for a
    token without an expiry.
    """

    digest: bytes
    expires: float


@lru_cache(256)
def read_token(token: str) -> Token:
    """Return the claims of ``token``."""
    digest = hashlib.sha256(token.encode()).digest()
    return Token(digest, _expiry(_claims(token)))


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT (RFC 7519); empty for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _expiry(claims: dict[str, Any]) -> float:
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or not 0 <= expires < _END_OF_TIME:
        return math.inf
    return float(expires)
