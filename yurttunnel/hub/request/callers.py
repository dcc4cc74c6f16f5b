"""Who asks, and what a bearer token says of itself.

Nothing is verified here: whether a token is accepted, and whose it is, the API says.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import math
from base64 import urlsafe_b64decode
from functools import lru_cache
from typing import Any, NamedTuple

from yurttunnel.http.bearer import BadToken, bearer_token
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.requests import Caller

SERVICE_ACCOUNT = "system:serviceaccount:"
"""What names of service accounts begin with; ``NAMESPACE:NAME`` follows."""

PAGES = "yurthub-pages"
"""The component of the hub itself where people ask its pages: nothing is kept for that."""


def groups_of(owner: str) -> list[str]:
    """Return the groups of a user whom the API knows by this name.

    For a service account those are all (k8s.io/apiserver pkg/authentication/serviceaccount); of
    others it is only known that the API knows them.
    """
    groups = ["system:authenticated"]
    if not owner.startswith(SERVICE_ACCOUNT):
        return groups
    namespace = owner.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", *groups]


LONGEST_COMPONENT = 253
"""Characters of a component that are looked at; it is a key of the cache."""

_TOKEN_PROTOCOL = b"base64url.bearer.authorization.k8s.io."
"""What a protocol of a WebSocket begins with that is a token (k8s.io/apiserver
pkg/authentication/request/websocket)."""


def caller_of(head: RequestHead, local: bool) -> Caller:
    """Return who asks; ``local`` says that the request came by a loopback listener.

    Raises ``RequestFailed`` (401) for an ``Authorization`` that is not one bearer token, and for a
    token among the protocols of a WebSocket: what else it may be, it must not be answered as the
    node's own.
    """
    agents = head.by_name.get(b"user-agent")
    component = _component(agents[0][: LONGEST_COMPONENT + 1]) if agents else ""
    keep = b"edge-cache" in head.by_name and _asks_for_keeping(head)
    if any(_TOKEN_PROTOCOL in value for value in head.by_name.get(b"sec-websocket-protocol", ())):
        raise RequestFailed(
            401, "the hub accepts tokens in Authorization, not in a WebSocket protocol"
        )
    if b"authorization" not in head.by_name:
        return Caller(component, "", local, keep)
    try:
        token = bearer_token(head)
    except BadToken as error:
        raise RequestFailed(401, f"the credentials cannot be read: {error}") from None
    return Caller(component, token or "", local, keep)


def _asks_for_keeping(head: RequestHead) -> bool:
    """Return whether it has upstream's ``Edge-Cache: true``."""
    return any(value.lower() == b"true" for value in head.values(b"edge-cache"))


@lru_cache(256)
def _component(agent: bytes) -> str:
    words = agent.decode("latin-1").split(None, 1)
    return words[0].partition("/")[0].lower()[:LONGEST_COMPONENT] if words else ""


_END_OF_TIME = 2**62
"""Seconds since 1970; a later end of a token is none."""


class Token(NamedTuple):
    """What a bearer token says of itself, verified by nobody.

    ``digest`` is its SHA-256. ``expires`` is in seconds since 1970, infinite when the token does
    not say.
    """

    digest: bytes
    expires: float


@lru_cache(256)
def read_token(token: str) -> Token:
    """Return what ``token`` says."""
    digest = hashlib.sha256(token.encode()).digest()
    return Token(digest, _expiry(_claims(token)))


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT (RFC 7519), none of what is no JWT."""
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
