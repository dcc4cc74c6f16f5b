"""Everything the server needs to talk to kubelets, kept up to date while it runs."""

from __future__ import annotations

from pathlib import Path

from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.pki.authority import Authority
from yurttunnel.pki.bundle import AuthorityFile
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.kubelets import KubeletContexts, KubeletVerification
from yurttunnel.pki.serving import KubeletClientCertificate
from yurttunnel.pki.standalone_renewal import CertificateRenewal


class KubeletTrust(MultiService):
    """The server's certificate for kubelets and the authorities of theirs.

    ``contexts`` has the TLS. As a service it renews the certificate, and reads the file of
    authorities again when that has changed; ``problem`` says in one line what is wrong with
    either, ``None`` when all is well.
    """

    def __init__(
        self,
        contexts: KubeletContexts,
        renewal: CertificateRenewal,
        authorities: AuthorityFile | None,
    ) -> None:
        super().__init__()
        self.contexts = contexts
        self.renewal = renewal
        self._authorities = authorities

    @classmethod
    def open(
        cls,
        clock: IReactorTime,
        directory: StateDirectory,
        authority: Authority,
        mode: KubeletVerification,
        authority_file: Path | None,
    ) -> KubeletTrust:
        """Load or make the certificate, and read ``authority_file`` if there is one.

        Without, kubelets are verified by ``authority``. Raises :class:`StateError` and
        :class:`BadBundle`.
        """
        certificate = KubeletClientCertificate(clock, directory, authority)
        contexts = KubeletContexts(clock, certificate.load(), mode)
        renewal = CertificateRenewal(
            clock, "the server for kubelets", contexts, certificate.obtain, certificate.store
        )
        authorities = None
        if authority_file is not None:
            authorities = AuthorityFile(clock, authority_file, contexts.trust)
            contexts.trust(authorities.authorities)
        trust = cls(contexts, renewal, authorities)
        for service in (renewal, authorities):
            if service is not None:
                service.setServiceParent(trust)
        return trust

    @property
    def problem(self) -> str | None:
        """Return what is wrong."""
        authorities = None if self._authorities is None else self._authorities.problem
        return self.renewal.problem() or self.renewal.warning() or authorities
