"""TLS for callers that request connections to nodes from the server.

Where only TLS authenticates, every accepted caller can reach every node. A certificate of the
authority is therefore not enough, since every node has one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cryptography import x509
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

from yurttunnel.pki.contexts import PEER_MUST_PRESENT, RotatingContexts, server_context
from yurttunnel.pki.credentials import Credentials, extension_of
from yurttunnel.pki.names import KUBELET_CLIENT_NAME, NODE_ORGANIZATION
from yurttunnel.pki.rejection import set_verification
from yurttunnel.pki.tls_errors import certificate_problem, rejection_error

HTTP_PROTOCOL = b"http/1.1"


@implementer(IOpenSSLServerConnectionCreator)
class OptionalCallerContexts(RotatingContexts):
    """Contexts for listeners that request a client certificate but do not require one.

    A presented certificate must be issued by the credentials' authorities and be valid for TLS
    clients, or the handshake fails. The code that handles the requests identifies and authorizes
    the caller, which may authenticate there by other means, such as a token.

    Callers may offer the ALPN protocol ``http/1.1`` or none at all (kube-apiserver).
    """

    _mode = SSL.VERIFY_PEER

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Return the TLS state of a connection whose transport is ``tlsProtocol``."""
        return SSL.Connection(self._context, None)

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = server_context(credentials)
        context.set_alpn_select_callback(_select_protocol)
        set_verification(context, self._mode, self._verify)
        return context

    def _verify(
        self, connection: SSL.Connection, certificate: X509, error: int, depth: int, valid: int
    ) -> bool:
        if not valid:
            problem = certificate_problem(error, "an authority that is trusted here")
            raise rejection_error(f"its certificate {problem}")
        return True


class CallerContexts(OptionalCallerContexts):
    """Contexts for listeners that authenticate callers by their certificates alone.

    A caller needs a certificate of the credentials' authorities for TLS clients, with one of
    ``names`` as its common name; ``None`` allows every name. Certificates of nodes are rejected
    whatever their name is, since a node may have the name of a caller. Kubelets and their stand-ins
    also use this class, and allow ``KUBELET_CLIENT_NAME``.
    """

    _mode = PEER_MUST_PRESENT

    def __init__(self, credentials: Credentials, names: Collection[str] | None) -> None:
        self._names = None if names is None else frozenset(names)
        super().__init__(credentials)

    def _verify(
        self, connection: SSL.Connection, certificate: X509, error: int, depth: int, valid: int
    ) -> bool:
        super()._verify(connection, certificate, error, depth, valid)
        if depth == 0:
            wrong = caller_problem(certificate.to_cryptography(), self._names)
            if wrong is not None:
                raise rejection_error(f"its certificate is {wrong}")
        return True


def caller_problem(certificate: x509.Certificate, names: Collection[str] | None) -> str | None:
    """Return why a verified certificate is not that of a caller in ``names``, or ``None``."""
    subject = certificate.subject
    organizations = [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    common_names = [a.value for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if NODE_ORGANIZATION in organizations and not _is_kubelet_client(certificate, common_names):
        return f"that of a node, {_quoted(common_names)}"
    if names is not None and (len(common_names) != 1 or common_names[0] not in names):
        return f"for {_quoted(common_names)}, allowed are {_quoted(sorted(names))}"
    return None


def _is_kubelet_client(certificate: x509.Certificate, common_names: list[str | bytes]) -> bool:
    """Return whether it is the server's own certificate for kubelets, not a node's with that name.

    Both have the same organization, but certificates of nodes have alternative names.
    """
    names = extension_of(certificate, x509.SubjectAlternativeName)
    return names is None and common_names == [KUBELET_CLIENT_NAME]


def _quoted(names: Sequence[str | bytes]) -> str:
    return ", ".join(repr(name) for name in names) or "nobody"


def _select_protocol(connection: SSL.Connection, offered: list[bytes]) -> bytes:
    if HTTP_PROTOCOL in offered:
        return HTTP_PROTOCOL
    raise rejection_error("it offers other protocols than http/1.1 (ALPN)")
