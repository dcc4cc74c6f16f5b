"""The issuer for certificates of the process that holds the embedded authority's key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cryptography import x509
from twisted.internet.interfaces import IReactorTime

from yurttunnel.pki.authority import Authority, AuthorityExpired, key_of_request
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.credentials import extension_of, is_issued_by
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import EXTENDED_USAGES, Chain, NotIssued, Template
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import STANDALONE_SCHEDULE


class OwnTemplate(Template, Protocol):
    """The template of a certificate of this process, whose usage never changes."""

    @property
    def usage(self) -> str:
        """``SERVER_AUTH`` or ``CLIENT_AUTH``."""


class EmbeddedIssuer:
    """Signs every request at once, since only this process can make requests."""

    final_errors: tuple[type[Exception], ...] = ()

    def __init__(self, authority: Authority, usage: str, lifetime: float) -> None:
        self._authority = authority
        self._usage = EXTENDED_USAGES[usage]
        self._lifetime = lifetime

    async def issue(self, request: bytes, on_waiting: Callable[[str], object]) -> Chain:
        """Return the certificate, followed by the authority's."""
        key = key_of_request(request.decode("ascii"))
        csr = x509.load_pem_x509_csr(request)
        names = extension_of(csr, x509.SubjectAlternativeName)
        try:
            certificate = self._authority.sign(
                csr.subject, key, list(names or ()), self._usage, self._lifetime
            )
        except AuthorityExpired as error:
            raise NotIssued(str(error)) from None
        return (certificate, self._authority.certificate)


def own_certificate(
    clock: IReactorTime,
    authority: Authority,
    name: str,
    template: OwnTemplate,
    store: CertificateStore,
    lifetime: float,
) -> CertificateRenewal:
    """Return the renewal of a certificate of this process, with the first one issued.

    Raises :class:`StateError` if the certificate cannot be stored, except on a full disk: storing
    is retried while the process runs.
    """

    def find_problem(certificate: x509.Certificate) -> str | None:
        if not is_issued_by(certificate, authority.certificate):
            return "is from another authority"
        return template.problem(certificate)

    renewal = CertificateRenewal(
        clock,
        name,
        EmbeddedIssuer(authority, template.usage, lifetime),
        store,
        STANDALONE_SCHEDULE,
        lambda: template,
        find_problem,
    )
    renewal.check()
    if not renewal.is_usable:
        raise StateError(f"{store.path}: {renewal.problem()}")
    if renewal.storage_error is not None and not renewal.storage_error.disk_is_full:
        raise renewal.storage_error
    return renewal
