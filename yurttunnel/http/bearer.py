"""Bearer tokens in heads (RFC 6750 section 2.1)."""

from __future__ import annotations

import re

from yurttunnel.http.fields import Head

LONGEST_TOKEN = 16 * 1024
"""Characters: those of service accounts have about 1,000, of identity providers some thousand."""

# With more than one space kube-apiserver sees no token, and answers as it answers nobody
# (``AuthenticateRequest`` of k8s.io/apiserver pkg/authentication/request/bearertoken).
_BEARER = re.compile(rb"bearer ([\x21-\x7e]+) *", re.IGNORECASE)


class BadToken(Exception):
    """An ``Authorization`` field that cannot be a token; one line says why."""


def bearer_token(head: Head) -> str | None:
    """Return the bearer token of a request, ``None`` when it has none.

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
    if len(match[1]) > LONGEST_TOKEN:
        raise BadToken(f"the token has more than {LONGEST_TOKEN} characters")
    return match[1].decode("ascii")
