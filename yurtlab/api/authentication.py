"""Who asks: by a client certificate of the cluster's authority, or by a token.

TLS has verified the certificate already.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from yurtlab.api import errors
from yurtlab.api.jwt import BadToken
from yurtlab.api.tokens import ServiceAccountTokens
from yurtlab.api.users import AUTHENTICATED, User
from yurttunnel.http.interfaces import IExchange
from yurttunnel.pki.contexts import peer_certificate

_ANYBODY = frozenset({"/healthz", "/livez", "/readyz", "/version"})
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


def is_public(path: str) -> bool:
    """Return whether ``path`` is for anybody, as ClusterRole system:public-info-viewer has it."""
    return path in _ANYBODY or path.startswith(("/livez/", "/readyz/"))


def authenticate(exchange: IExchange, tokens: ServiceAccountTokens) -> User | None:
    """Find who asks, ``None`` when a request does not say; raises Unauthorized for bad tokens."""
    if not exchange.secure:
        return None
    return identify(exchange) or _by_token(exchange, tokens)


def identify(exchange: IExchange) -> User | None:
    """Find who asks, by the certificate of the connection; ``None`` when that does not tell."""
    if not exchange.secure:
        return None
    # What the transport is an interface for is not said by the direct TLS of the tunnel.
    certificate = peer_certificate(exchange.transport)  # type: ignore[arg-type] # see above
    if certificate is None:
        return None
    subject = certificate.subject
    names = [str(one.value) for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(names) != 1 or not names[0]:
        return None
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return User(
        names[0],
        (*(str(one.value) for one in groups), AUTHENTICATED),
        extra={_CREDENTIAL: (f"X509SHA256={fingerprint}",)},
    )


def _by_token(exchange: IExchange, tokens: ServiceAccountTokens) -> User | None:
    fields = exchange.head.values(b"authorization")
    if not fields:
        return None
    scheme, _, token = fields[0].decode("latin-1").strip().partition(" ")
    if scheme.lower() != "bearer" or not token:
        return None
    try:
        return tokens.authenticate(token.strip()).user
    except BadToken:
        raise errors.unauthorized() from None
