"""Placeholders for service account tokens while the API cannot issue real ones.

A pod that starts offline gets its files only if the kubelet gets a token. The placeholder is a JWT
that the hub signs with a secret of its own (HS256), so it can identify the account later; the
issuer and a claim mark it as a placeholder. The API knows neither the issuer nor the secret, and
rejects it. Its lifetime is ten minutes, so the kubelet requests a real token soon after the cloud
is reachable again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any

from twisted.logger import Logger

from yurttunnel.hub.request.callers import SERVICE_ACCOUNT
from yurttunnel.pki.directory import StateDirectory, StateError

LIFETIME = 600
"""In seconds; the shortest lifetime that the API issues (``minExpirationSeconds`` of
k8s.io/kubernetes pkg/apis/authentication/validation), so the shortest that the kubelet supports."""

ISSUER = "yurthub"
MARK = "yurttunnel.io/placeholder"
"""A claim that real tokens do not have."""

KEY = "placeholder-tokens.key"
"""The file of the secret."""

SECRET_BYTES = 32

_log = Logger()


def kept_secret(directory: StateDirectory) -> bytes:
    """Return the secret stored in ``directory``, created if it does not exist.

    It survives a restart, unless the directory is not writable: the hub works without it. Raises
    ``StateError`` if other users can read the file, or write to the directory.
    """
    secret = directory.read(KEY, secret=True)
    if secret is not None and len(secret) == SECRET_BYTES:
        return secret
    secret = os.urandom(SECRET_BYTES)
    try:
        directory.write(KEY, secret)
    except StateError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        _log.warn("token placeholders are not recognized after a restart: {error}", error=error)
    return secret


class PlaceholderTokens:
    """Issues and recognizes placeholders; ``now`` returns the seconds since 1970.

    ``secret`` has :data:`SECRET_BYTES`. Anyone who has it can read, while the node is offline, the
    cached data of any service account on this node.
    """

    def __init__(self, secret: bytes, now: Callable[[], float]) -> None:
        self._secret = secret
        self._now = now

    def issue(self, namespace: str, name: str, audiences: Sequence[str]) -> tuple[str, int]:
        """Return a token for a service account, and its expiry in seconds since 1970."""
        now = int(self._now())
        claims = {
            "iss": ISSUER,
            "sub": f"{SERVICE_ACCOUNT}{namespace}:{name}",
            "aud": list(audiences),
            "iat": now,
            "nbf": now,
            "exp": now + LIFETIME,
            MARK: True,
        }
        content = f"{_HEADER}.{_encoded(json.dumps(claims).encode())}"
        return f"{content}.{self._signature(content)}", now + LIFETIME

    def owner(self, token: str) -> str | None:
        """Return the account of a placeholder, ``None`` unless it is valid and from this hub.

        A placeholder for other audiences is for these, and not for the API.
        """
        content, _, signature = token.rpartition(".")
        expected = self._signature(content)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        claims: dict[str, Any] = json.loads(_decoded(content.partition(".")[2]))
        if claims["aud"] or not claims["nbf"] <= self._now() < claims["exp"]:
            return None
        return str(claims["sub"])

    def _signature(self, content: str) -> str:
        digest = hmac.new(self._secret, content.encode(), hashlib.sha256).digest()
        return _encoded(digest)


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


_HEADER = _encoded(b'{"alg":"HS256","typ":"JWT","kid":"placeholder"}')
