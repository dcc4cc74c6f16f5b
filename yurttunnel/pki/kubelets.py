"""TLS to kubelets: the server's client certificate, and the verification of kubelets.

Kubelets sign their serving certificates themselves unless they are configured to request them from
the cluster (``serverTLSBootstrap`` of ``KubeletConfiguration``), so a chain to an authority cannot
be required everywhere.
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
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL
from yurttunnel.pki.contexts import (
    PEER_MUST_PRESENT,
    RotatingContexts,
    client_connection,
    client_context,
    matches_host,
    names_in,
)
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.rejection import set_verification
from yurttunnel.pki.tls_errors import FOREIGN, certificate_problem

log = Logger()

EMBEDDED_AUTHORITY = "an authority of --kubelet-ca, which is this server's own by default"
CLUSTER_AUTHORITY = "an authority of --kubelet-ca, which are the cluster's by default"
"""The expected issuers of kubelets' certificates, without a cluster and in one."""


class KubeletVerification(enum.Enum):
    """How a kubelet's certificate is verified; the values are those of ``--kubelet-verify``."""

    CA = "ca"
    """Require a chain to the authority, and a matching name."""
    AUTO = "auto"
    """Require the same for certificates of the authority; accept others with a warning."""
    SKIP = "skip"
    """Verify nothing."""


class Verdict(enum.Enum):
    """The result of a handshake with a kubelet; the values are labels of metrics."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    """No trusted authority has signed the kubelet's certificate."""
    SKIPPED = "skipped"
    """The certificate was not verified."""


class KubeletNotTrusted(Exception):
    """A kubelet was rejected; the text describes its fault and names the flag."""


class KubeletContexts(RotatingContexts):
    """Contexts for connections to kubelets.

    ``credentials`` are presented to kubelets, and their authorities verify kubelets. A kubelet's
    own certificate may be among the authorities, to pin it. ``authority`` names the expected issuer
    in messages.
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
        """Return the creator of one connection to the kubelet of ``node``, dialed as ``host``.

        The handshake fails with :class:`KubeletNotTrusted` if the kubelet's certificate is not
        acceptable.
        """
        return KubeletConnectionCreator(self, self._context, node, host)

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = client_context(credentials, HTTP_PROTOCOL)
        store = context.get_cert_store()
        assert store is not None  # every context has one
        # For authorities that are a kubelet's own certificate or an intermediate one.
        store.set_flags(X509StoreFlags.PARTIAL_CHAIN)
        return context


@implementer(IOpenSSLClientConnectionCreator)
class KubeletConnectionCreator:
    """Creates the TLS state of one connection, and holds the result of its verification.

    ``verdict`` is valid after the handshake.
    """

    def __init__(
        self, contexts: KubeletContexts, context: SSL.Context, node: str, host: str
    ) -> None:
        self._contexts = contexts
        self._context = context
        self._node = node
        # Certificates contain names without a final dot.
        self._host = host.removesuffix(".")
        skips = contexts.mode is KubeletVerification.SKIP
        self.verdict = Verdict.SKIPPED if skips else Verdict.VERIFIED

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Return the TLS state of a connection whose transport is ``tlsProtocol``."""
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
                # OpenSSL calls this function: a certificate that cannot be verified is rejected.
                log.failure("verifying the certificate of {node} failed", node=self._node)
                return False
            if problem is not None:
                tlsProtocol.failVerification(Failure(KubeletNotTrusted(problem)))
            return problem is None

        return verify

    def _problem(
        self, certificate: x509.Certificate, error: int, depth: int, valid: bool
    ) -> str | None:
        """Return an error in one line; called for each certificate, the kubelet's own last."""
        if self.verdict is Verdict.UNVERIFIED:
            # The rest of the certificate proves nothing.
            return None
        if not valid:
            if error in FOREIGN and self._contexts.mode is KubeletVerification.AUTO:
                self.verdict = Verdict.UNVERIFIED
                self._warn()
                return None
            problem = certificate_problem(error, self._contexts.authority)
            return f"its certificate {problem}: {_ADVICE_ON_CHAIN}"
        if (
            depth == 0
            and not matches_host(certificate, self._host)
            and not matches_host(certificate, self._node)
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
            "from {authority}. Configure the one that has signed it, or accept this with"
            " --kubelet-verify skip; --kubelet-verify ca rejects such kubelets",
            node=self._node,
            host=self._host,
            authority=self._contexts.authority,
        )


_ADVICE_ON_CHAIN = "give the server the authority that has signed it, or see --kubelet-verify"
_ADVICE_ON_NAME = "dial one of these, or see --kubelet-verify"
