"""Bearer tokens in the ``Authorization`` field (RFC 6750 section 2.1)."""

from __future__ import annotations

import re

from yurttunnel.http.fields import Head

MAX_TOKEN = 16 * 1024
"""The maximum length in characters. Tokens of service accounts have about 1,000, those of identity
providers a few thousand."""

# With more than one space kube-apiserver finds no token, and treats the request as anonymous
# (``AuthenticateRequest`` of k8s.io/apiserver pkg/authentication/request/bearertoken).
_BEARER = re.compile(rb"bearer ([\x21-\x7e]+) *", re.IGNORECASE)


class BadToken(Exception):
    """An ``Authorization`` field without a valid token; the message says why in one line."""


def bearer_token(head: Head) -> str | None:
    """Return the bearer token of a request, or ``None`` if there is no ``Authorization`` field.

    Raises :class:`BadToken`.
    """
    values = head.values(b"authorization")
    if not values:
        return None
    if len(values) > 1:
        raise BadToken("Authorization is present more than once")
    match = _BEARER.fullmatch(values[0])
    if match is None:
        raise BadToken("Authorization has no bearer token")
    if len(match[1]) > MAX_TOKEN:
        raise BadToken(f"the token has more than {MAX_TOKEN} characters")
    return match[1].decode("ascii")
