"""TLS for those who ask the server for connections to nodes.

Where TLS alone decides, whoever gets through reaches every node. A certificate of the authority
is therefore not enough: every node has one, too.
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
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.names import KUBELET_CLIENT_NAME, NODE_ORGANIZATION
from yurttunnel.pki.problems import certificate_problem, refusal
from yurttunnel.pki.rejection import set_verification

HTTP_PROTOCOL = b"http/1.1"


@implementer(IOpenSSLServerConnectionCreator)
class OptionalCallerContexts(RotatingContexts):
    """Contexts for listeners that ask their callers for a certificate, but do without.

    A certificate that is presented must come from the credentials' authorities and be good for
    TLS clients, or the handshake fails. Who the caller is, and whether it may do what it asks
    for, is left to whoever reads its requests: there it may prove itself by something else, such
    as a token.

    Callers may offer the ALPN protocol ``http/1.1`` or none at all (kube-apiserver).
    """

    _mode = SSL.VERIFY_PEER

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Make the TLS state of a connection whose transport is ``tlsProtocol``."""
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
            raise refusal(f"its certificate {problem}")
        return True


class CallerContexts(OptionalCallerContexts):
    """Contexts for the listeners of callers who are known by their certificates alone.

    A caller needs a certificate of the credentials' authorities for TLS clients, with one of
    ``names`` as its common name; ``None`` allows every name. Certificates of nodes are refused
    whatever their name is: a node may be called like a caller. Kubelets and those who stand in
    for one use this, too, and allow ``KUBELET_CLIENT_NAME``.
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
                raise refusal(f"its certificate is {wrong}")
        return True


def caller_problem(certificate: x509.Certificate, names: Collection[str] | None) -> str | None:
    """Return why a verified certificate is not that of a caller in ``names``, if it is not."""
    subject = certificate.subject
    organizations = [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    common_names = [a.value for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if NODE_ORGANIZATION in organizations and not _is_kubelet_client(certificate, common_names):
        return f"that of a node, {_quoted(common_names)}"
    if names is not None and (len(common_names) != 1 or common_names[0] not in names):
        return f"for {_quoted(common_names)}, allowed are {_quoted(sorted(names))}"
    return None


def _is_kubelet_client(certificate: x509.Certificate, common_names: list[str | bytes]) -> bool:
    """Return the server's own certificate for kubelets from one of a node that is called so.

    Both have the same organization, but those of nodes have alternative names, too.
    """
    try:
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return common_names == [KUBELET_CLIENT_NAME]
    return False


def _quoted(names: Sequence[str | bytes]) -> str:
    return ", ".join(repr(name) for name in names) or "nobody"


def _select_protocol(connection: SSL.Connection, offered: list[bytes]) -> bytes:
    if HTTP_PROTOCOL in offered:
        return HTTP_PROTOCOL
    raise refusal("it offers other protocols than http/1.1 (ALPN)")
