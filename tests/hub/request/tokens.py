"""Tokens as the API and others issue them; whoever reads them here verifies nothing."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode


def jwt(claims):
    """Make a JSON Web Token with these claims, which may be any bytes or what JSON has."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    parts = (b'{"alg":"RS256"}', payload, b"signature")
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def service_account_token(namespace, name, expires=2_000_000_000, **more):
    """Make a token as kube-apiserver issues them to pods."""
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
    """Return whom a JWT names."""
    payload = token.split(".")[1]
    return json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
