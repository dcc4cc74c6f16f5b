"""Authentication and authorization: the interfaces, and the defaults of the API.

By default it accepts certificates of the cluster's CA, which TLS has verified already, and allows
the members of one group everything.
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
"""The group of all authenticated users."""

MASTERS = "system:masters"
"""The group whose members may do everything."""

_ANYONE = frozenset({"/healthz", "/livez", "/readyz", "/version"})
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True, slots=True)
class User:
    """A user (``user.Info`` of k8s.io/apiserver): a name, groups, and extra attributes."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """The attributes of a request; ``target`` is what the path names, if it is served here."""

    method: str
    path: str
    query: Query
    target: Target | None = None


class IAuthenticator(Interface):
    """Authenticates requests."""

    def authenticate(exchange: IExchange) -> User | None:
        """Return the user, or ``None`` for an anonymous request; raise ``ApiError``."""


class IAuthorizer(Interface):
    """Authorizes requests."""

    def check(user: User, request: Request) -> None:
        """Return if the request of ``user`` is allowed, else raise Forbidden."""


def is_public(path: str) -> bool:
    """Return whether ``path`` is public, as in ClusterRole system:public-info-viewer."""
    return path in _ANYONE or path.startswith(("/livez/", "/readyz/"))


@implementer(IAuthenticator)
class Certificates:
    """Authenticates users by their client certificates."""

    def authenticate(self, exchange: IExchange) -> User | None:
        """Return the user in the connection's certificate; see ``IAuthenticator``."""
        if not exchange.secure:
            return None
        # The direct TLS of the tunnel does not declare the interfaces of its transport.
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
    """Allows members of system:masters everything, and others nothing.

    The CA also issues other certificates, such as those of agents, which are not for this API.
    """

    def check(self, user: User, request: Request) -> None:
        if MASTERS not in user.groups:
            text = f'User "{user.name}" is not in the group {MASTERS}, which alone may use this API'
            raise errors.ApiError(403, "Forbidden", f"forbidden: {text}", {})
