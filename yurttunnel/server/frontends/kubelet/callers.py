"""The identity of a caller, from the certificate that TLS verified, and the client it acts for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from cryptography.x509.oid import NameOID
from twisted.internet.interfaces import ITransport

from yurttunnel.http.authority import parse_address
from yurttunnel.http.head import RequestHead
from yurttunnel.pki.contexts import peer_certificate
from yurttunnel.pki.names import NODE_ORGANIZATION
from yurttunnel.server.frontends.kubelet.reviews import User
from yurttunnel.tunnel.shares import caller_at

_MAX_ADDRESS = 45
"""The longest text in characters (``INET6_ADDRSTRLEN`` of netinet/in.h, less the final zero)."""

_AUTHENTICATED = "system:authenticated"
_NODES_GROUP = "system:nodes"
_NODE_USER = "system:node:"


class CertificateUser(NamedTuple):
    """The user that a certificate names.

    ``is_node`` is whether nodes may have obtained the certificate for themselves; otherwise a node
    whose name equals that of another user would pass for that user.
    """

    user: User
    is_node: bool


class CertificateUsers:
    """Reads certificates once per connection, because that takes longer than many requests do.

    ``allowed_names`` are those of kube-apiserver in its certificate for kubelets.
    """

    def __init__(self, allowed_names: Collection[str] = ()) -> None:
        self._allowed_names = frozenset(allowed_names)
        self._users: WeakKeyDictionary[ITransport, CertificateUser | None] = WeakKeyDictionary()

    def of(self, transport: ITransport) -> CertificateUser | None:
        """Return the user at the other end of a TLS ``transport``, ``None`` if unknown."""
        try:
            return self._users[transport]
        except KeyError:
            user = self._users[transport] = _certificate_user(transport)
            return user

    def is_allowed(self, transport: ITransport) -> bool:
        """Return whether the peer has one of the allowed names, and not by a node's certificate."""
        certificate = self.of(transport)
        return (
            certificate is not None
            and not certificate.is_node
            and certificate.user.name in self._allowed_names
        )


def _certificate_user(transport: Any) -> CertificateUser | None:
    """Read the name and the groups like the API (``CommonNameUserConversion``)."""
    certificate = peer_certificate(transport)
    if certificate is None:
        return None
    subject = certificate.subject
    names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if len(names) != 1 or not names[0]:
        return None
    is_node = names[0].startswith(_NODE_USER) or not {NODE_ORGANIZATION, _NODES_GROUP}.isdisjoint(
        groups
    )
    return CertificateUser(User(names[0], (*groups, _AUTHENTICATED)), is_node)


def client_of(head: RequestHead) -> str:
    """Return the key of the client that kube-apiserver acts for, empty if that is not known.

    It is the last address of ``X-Forwarded-For``, which kube-apiserver itself appends to whatever
    its client has sent: ``ServeHTTP`` of Go's net/http/httputil ``ReverseProxy``, and for upgrades
    ``AppendForwardedForHeader`` of k8s.io/apimachinery pkg/util/net/http.go. It does not append one
    to requests that it creates itself: for logs (``LocationStreamer`` of k8s.io/apiserver
    pkg/registry/generic/rest), and for upgrades whose WebSocket it translates
    (``StreamTranslatorHandler`` of pkg/util/proxy there).
    """
    values = head.values(b"x-forwarded-for")
    last = values[-1].rpartition(b",")[2].strip() if values else b""
    if len(last) > _MAX_ADDRESS:
        return ""
    address = parse_address(last.decode("latin-1"))
    return "" if address is None else caller_at(str(address))
