"""Tokens of the API and of others; code under test verifies nothing."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode


def jwt(claims):
    """Create a JSON Web Token with these claims: any bytes, or a JSON value."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    parts = (b'{"alg":"RS256"}', payload, b"signature")
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def service_account_token(namespace, name, expires=2_000_000_000, **more):
    """Create a token like kube-apiserver's for pods."""
    return jwt(
        {
            "iss": "https://kubernetes.default.svc",
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "exp": expires,
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name}},
            **more,
        }
    )


def subject(token):
    """Return the subject of a JWT."""
    payload = token.split(".")[1]
    return json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
