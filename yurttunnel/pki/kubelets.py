"""TLS toward kubelets: who the server says it is, and how much it asks of them.

Kubelets sign their serving certificates themselves unless they are told to have that done by the
cluster (``serverTLSBootstrap`` of ``KubeletConfiguration``), so a chain to an authority cannot be
demanded everywhere.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509StoreFlags
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTime
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.callers import HTTP_PROTOCOL
from yurttunnel.pki.contexts import (
    PEER_MUST_PRESENT,
    RotatingContexts,
    client_connection,
    client_context,
    is_for,
    names_in,
)
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.problems import certificate_problem
from yurttunnel.pki.rejection import set_verification

log = Logger()

EMBEDDED_AUTHORITY = "an authority of --kubelet-ca, which is this server's own by default"
CLUSTER_AUTHORITY = "an authority of --kubelet-ca, which are the cluster's by default"
"""From whom kubelets' certificates should be, without a cluster and in one."""

_codes = SSL.X509VerificationCodes
_FOREIGN = frozenset(
    {
        _codes.ERR_UNABLE_TO_GET_ISSUER_CERT,
        _codes.ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
        _codes.ERR_DEPTH_ZERO_SELF_SIGNED_CERT,
        _codes.ERR_SELF_SIGNED_CERT_IN_CHAIN,
        _codes.ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE,
        _codes.ERR_CERT_SIGNATURE_FAILURE,
    }
)
"""What OpenSSL finds of a certificate that no trusted authority has signed. It looks for the
issuer first, so one of these comes before anything else about such a certificate."""


class KubeletVerification(enum.Enum):
    """What is asked of a kubelet's certificate; the values are those of ``--kubelet-verify``."""

    CA = "ca"
    """A chain to the authority, and a name."""
    AUTO = "auto"
    """The same of certificates that the authority has signed; others are taken with a warning."""
    SKIP = "skip"
    """Nothing."""


class Verdict(enum.Enum):
    """What is known of the kubelet at the end of a handshake; the values are labels of metrics."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    """No trusted authority has signed its certificate."""
    SKIPPED = "skipped"
    """Nobody has looked."""


class KubeletNotTrusted(Exception):
    """A kubelet was refused; the text says of it what is wrong, and names the flag."""


class KubeletContexts(RotatingContexts):
    """Contexts for connections to kubelets.

    ``credentials`` are what the server presents. Kubelets are verified by the authorities there; a
    certificate among these is trusted itself, too: a kubelet's own can be pinned. ``authority``
    says in messages from whom their certificates should be.
    """

    def __init__(
        self,
        clock: IReactorTime,
        credentials: Credentials,
        mode: KubeletVerification,
        authority: str = EMBEDDED_AUTHORITY,
    ) -> None:
        self.authority = authority
        self.mode = mode
        self.warnings = RateLimitedLog(clock, log)
        super().__init__(credentials)

    def creator(self, node: str, host: str) -> KubeletConnectionCreator:
        """Return what makes one connection to the kubelet of ``node`` that is dialed as ``host``.

        A kubelet whose certificate is not acceptable fails the handshake with
        :class:`KubeletNotTrusted`.
        """
        return KubeletConnectionCreator(self, self._context, node, host)

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = client_context(credentials, HTTP_PROTOCOL)
        store = context.get_cert_store()
        assert store is not None  # every context has one
        # For a kubelet's own certificate among the authorities, or that of an intermediate one.
        store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
        return context


@implementer(IOpenSSLClientConnectionCreator)
class KubeletConnectionCreator:
    """Makes the TLS state of one connection, and knows afterwards whom it leads to.

    ``verdict`` is what the handshake has found, once it is over.
    """

    def __init__(
        self, contexts: KubeletContexts, context: SSL.Context, node: str, host: str
    ) -> None:
        self._contexts = contexts
        self._context = context
        self._node = node
        # An absolute name is none for certificates.
        self._host = host.removesuffix(".")
        skips = contexts.mode is KubeletVerification.SKIP
        self.verdict = Verdict.SKIPPED if skips else Verdict.VERIFIED

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Make the TLS state of a connection whose transport is ``tlsProtocol``."""
        connection = client_connection(self._context, self._host)
        if self._contexts.mode is KubeletVerification.SKIP:
            connection.set_verify(SSL.VERIFY_NONE)
        else:
            set_verification(connection, PEER_MUST_PRESENT, self._verification(tlsProtocol))
        return connection

    def _verification(
        self, tlsProtocol: TLSMemoryBIOProtocol
    ) -> Callable[[SSL.Connection, X509, int, int, int], bool]:
        def verify(
            connection: SSL.Connection, certificate: X509, error: int, depth: int, valid: int
        ) -> bool:
            # An exception that leaves this function would be lost inside OpenSSL.
            try:
                problem = self._problem(certificate.to_cryptography(), error, depth, bool(valid))
            except Exception:
                # OpenSSL calls this: what cannot be verified is refused.
                log.failure("verifying the certificate of {node} failed", node=self._node)
                return False
            if problem is not None:
                tlsProtocol.failVerification(Failure(KubeletNotTrusted(problem)))
            return problem is None

        return verify

    def _problem(
        self, certificate: x509.Certificate, error: int, depth: int, valid: bool
    ) -> str | None:
        """Return what is wrong in one line; called for each certificate, the kubelet's own last."""
        if self.verdict is Verdict.UNVERIFIED:
            # Nothing else that its certificate says is proven.
            return None
        if not valid:
            if error in _FOREIGN and self._contexts.mode is KubeletVerification.AUTO:
                self.verdict = Verdict.UNVERIFIED
                self._warn()
                return None
            problem = certificate_problem(error, self._contexts.authority)
            return f"its certificate {problem}: {_ADVICE_ON_CHAIN}"
        if (
            depth == 0
            and not is_for(certificate, self._host)
            and not is_for(certificate, self._node)
        ):
            names = ", ".join(names_in(certificate)) or "nobody"
            return (
                f"its certificate is for {names} and for neither {self._host} nor "
                f"{self._node}: {_ADVICE_ON_NAME}"
            )
        return None

    def _warn(self) -> None:
        self._contexts.warnings.warn(
            "the kubelet of {node}, dialed as {host}, is not verified: its certificate is not "
            "from {authority}. Give the one that has signed it, or accept this with "
            "--kubelet-verify skip; --kubelet-verify ca refuses such kubelets",
            node=self._node,
            host=self._host,
            authority=self._contexts.authority,
        )


_ADVICE_ON_CHAIN = "give the server the authority that has signed it, or see --kubelet-verify"
_ADVICE_ON_NAME = "dial one of these, or see --kubelet-verify"
