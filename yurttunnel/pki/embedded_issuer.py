"""The issuer that is the embedded authority, for certificates of the process that has its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cryptography import x509
from twisted.internet.interfaces import IReactorTime

from yurttunnel.pki.authority import Authority, AuthorityEnded, key_of_request
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.credentials import is_issued_by
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import EXTENDED_USAGES, Chain, NotIssued, Template
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import STANDALONE_SCHEDULE


class OwnTemplate(Template, Protocol):
    """What a certificate of this process is to be like, and its usage, which stays the same."""

    @property
    def usage(self) -> str:
        """One of ``SERVER_AUTH`` and ``CLIENT_AUTH``."""


class EmbeddedIssuer:
    """Signs whatever is asked for, at once: nobody but this process can ask."""

    final: tuple[type[Exception], ...] = ()

    def __init__(self, authority: Authority, usage: str, lifetime: float) -> None:
        self._authority = authority
        self._usage = EXTENDED_USAGES[usage]
        self._lifetime = lifetime

    async def issue(self, request: bytes, waits: Callable[[str], object]) -> Chain:
        """Return the certificate, with the authority's own after it."""
        key = key_of_request(request.decode("ascii"))
        asked = x509.load_pem_x509_csr(request)
        try:
            names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = None
        try:
            certificate = self._authority.sign(
                asked.subject, key, list(names or ()), self._usage, self._lifetime
            )
        except AuthorityEnded as error:
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
    """Return what keeps a certificate of this process good, which is there then.

    Raises :class:`StateError` when it cannot be kept for the next start, unless that is for want
    of room: it is tried again while the process runs.
    """

    def misfit(certificate: x509.Certificate) -> str | None:
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
        misfit,
    )
    renewal.look()
    if not renewal.is_usable:
        raise StateError(f"{store.path}: {renewal.problem()}")
    if renewal.not_stored is not None and not renewal.not_stored.disk_is_full:
        raise renewal.not_stored
    return renewal
