"""Who asks, and whether they may: what the API is given, and what it has by itself.

By itself it knows certificates of the cluster's authority, which TLS has verified already, and lets
the members of one group do everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID
from zope.interface import Interface, implementer

from yurtlab.api import errors
from yurtlab.api.options import Query
from yurtlab.api.resources import Target
from yurttunnel.http.interfaces import IExchange
from yurttunnel.pki.contexts import peer_certificate

AUTHENTICATED = "system:authenticated"
"""The group of everybody who is known."""

MASTERS = "system:masters"
"""The group whose members may do everything."""

_ANYBODY = frozenset({"/healthz", "/livez", "/readyz", "/version"})
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True, slots=True)
class User:
    """Who asks (``user.Info`` of k8s.io/apiserver): a name, groups, and what else is known."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: ``target`` is what the path names, if that is served here."""

    method: str
    path: str
    query: Query
    target: Target | None = None


class IAuthenticator(Interface):
    """Finds out who asks."""

    def authenticate(exchange: IExchange) -> User | None:
        """Find who asks, ``None`` when the request does not say; raises ``ApiError``."""


class IAuthorizer(Interface):
    """Decides who may do what."""

    def check(user: User, request: Request) -> None:
        """Let a request of ``user`` pass, or raise Forbidden."""


def is_public(path: str) -> bool:
    """Return whether ``path`` is for anybody, as ClusterRole system:public-info-viewer has it."""
    return path in _ANYBODY or path.startswith(("/livez/", "/readyz/"))


@implementer(IAuthenticator)
class Certificates:
    """Knows those who show a client certificate."""

    def authenticate(self, exchange: IExchange) -> User | None:
        """Find who asks, by the certificate of the connection; see ``IAuthenticator``."""
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


@implementer(IAuthorizer)
class MastersOnly:
    """Lets members of system:masters do everything, and others nothing.

    Other certificates of the authority, as those of agents, are not for this API.
    """

    def check(self, user: User, request: Request) -> None:
        """Let a request pass, or raise Forbidden; see ``IAuthorizer``."""
        if MASTERS not in user.groups:
            text = f'User "{user.name}" is not in the group {MASTERS}, which alone may use this API'
            raise errors.ApiError(403, "Forbidden", f"forbidden: {text}", {})
