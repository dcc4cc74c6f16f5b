"""The interfaces of issuers and templates, and the certificates that they produce.

An :class:`Issuer` is the embedded authority (:mod:`yurttunnel.pki.embedded_issuer`), a server at
which a node enrolls (:mod:`yurttunnel.pki.enrolment_issuer`) or a signer of a cluster
(:mod:`yurttunnel.pki.cluster_issuer`). :mod:`yurttunnel.pki.renewal` renews the certificates of all
of them, and :mod:`yurttunnel.pki.certificate_store` stores them across restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import Credentials, PrivateKey, extension_of, is_issued_by

SERVER_AUTH = "server auth"
CLIENT_AUTH = "client auth"
_USAGES_OF_KEYS = ("digital signature", "key encipherment")
EXTENDED_USAGES = {
    SERVER_AUTH: ExtendedKeyUsageOID.SERVER_AUTH,
    CLIENT_AUTH: ExtendedKeyUsageOID.CLIENT_AUTH,
}

Address = IPv4Address | IPv6Address
Chain = tuple[x509.Certificate, ...]
"""A certificate, followed by the certificates that are sent after it."""


class NotIssued(Exception):
    """No certificate was issued; one line describes why, and a retry may succeed."""


class Denied(NotIssued):
    """The request was denied, or its signer rejected it."""


class Issuer(Protocol):
    """Issues certificates for keys of this process."""

    @property
    def final_errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of :meth:`issue` after which a retry would change nothing."""

    async def issue(self, request: bytes, on_waiting: Callable[[str], object]) -> Chain:
        """Return the certificate for a PKCS #10 request in PEM form.

        ``on_waiting`` is called with a sentence about what the request waits for, whenever that
        changes. Cancelling ends the wait. Raises :class:`NotIssued`, or one of ``final_errors``.
        """


class Template(Protocol):
    """The required properties of a certificate."""

    def request(self, key: PrivateKey) -> bytes:
        """Return the PKCS #10 request for a certificate of ``key``, in PEM form.

        Raises ``ValueError`` for names that no certificate can have.
        """

    def problem(self, certificate: x509.Certificate) -> str | None:
        """Complete "the certificate ..." if it does not match; extra names are allowed."""

    def covers(self, other: Template) -> bool:
        """Return whether a certificate of this template also satisfies ``other``."""


@dataclass(frozen=True, slots=True)
class CertificateTemplate:
    """A certificate with exactly this subject, and at least these names.

    ``usage`` is :data:`SERVER_AUTH` or :data:`CLIENT_AUTH`. ``organizations`` may be empty, and
    ``signer`` is empty except in a cluster. The order of the names only affects the request.
    """

    common_name: str
    organizations: tuple[str, ...]
    usage: str
    dns_names: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()
    uris: tuple[str, ...] = ()
    signer: str = ""

    @property
    def usages(self) -> list[str]:
        """The usages as the Kubernetes API names them (``KeyUsage``, certificates.k8s.io/v1)."""
        return [*_USAGES_OF_KEYS, self.usage]

    def covers(self, other: Template) -> bool:
        """Return whether a certificate of this template also satisfies ``other``."""
        return (
            isinstance(other, CertificateTemplate)
            and self.without_names() == other.without_names()
            and self._names() >= other._names()
        )

    def without_names(self) -> CertificateTemplate:
        """Return the template without alternative names."""
        return replace(self, dns_names=(), addresses=(), uris=())

    def problem(self, certificate: x509.Certificate) -> str | None:
        """Complete "the certificate ..." if it does not match; extra names are allowed."""
        try:
            subject = certificate.subject
            extended = extension_of(certificate, x509.ExtendedKeyUsage)
            names = extension_of(certificate, x509.SubjectAlternativeName)
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            return f"is malformed: {error}"
        for kind, desired in (
            (NameOID.COMMON_NAME, (self.common_name,)),
            (NameOID.ORGANIZATION_NAME, self.organizations),
        ):
            # Signers may reorder the attributes, as DER sorts sets.
            found = sorted(str(each.value) for each in subject.get_attributes_for_oid(kind))
            if found != sorted(desired):
                return f"is for {_listed(found)} and not for {_listed(sorted(desired))}"
        if extended is None or EXTENDED_USAGES[self.usage] not in extended:
            return f"is not meant for {self.usage}"
        missing = sorted(self._names() - _names_of(names))
        return f"lacks {', '.join(missing)}" if missing else None

    def request(self, key: PrivateKey) -> bytes:
        """Return the PKCS #10 request for a certificate of ``key``, in PEM form."""
        subject = [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in self.organizations),
            # Not validated: a node's user name may be longer than X.520 allows (64 characters);
            # Kubernetes accepts it, since Go does not check.
            x509.NameAttribute(NameOID.COMMON_NAME, self.common_name, _validate=False),
        ]
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in self.dns_names]
        names += [x509.IPAddress(address) for address in self.addresses]
        names += [x509.UniformResourceIdentifier(uri) for uri in self.uris]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _names(self) -> frozenset[str]:
        return frozenset([*self.dns_names, *map(str, self.addresses), *self.uris])


class IssuedCertificate(NamedTuple):
    """A certificate with its key; ``chain`` is sent after it."""

    key: PrivateKey
    certificate: x509.Certificate
    chain: Chain = ()

    def credentials(self, authorities: Sequence[x509.Certificate]) -> Credentials:
        """Combine it with the authorities that verify peers' certificates."""
        return Credentials(self.key, self.certificate, self.chain, tuple(authorities))

    def is_from(self, authorities: Sequence[x509.Certificate]) -> bool:
        """Return whether one of the authorities has issued it or a certificate of its chain."""
        links = (self.certificate, *self.chain)
        return any(is_issued_by(link, each) for link in links for each in authorities)


async def obtain(
    clock: IReactorTime,
    issuer: Issuer,
    template: Template,
    key: PrivateKey,
    on_waiting: Callable[[str], object],
) -> IssuedCertificate:
    """Request a certificate for ``key`` and return both, after a check against the template.

    Raises :class:`NotIssued`, and the ``final_errors`` exceptions of the issuer.
    """
    try:
        request = template.request(key)
    except ValueError as error:
        raise NotIssued(f"no certificate can have the requested names: {error}") from None
    certificate, *chain = await issuer.issue(request, on_waiting)
    problem = _problem(clock, template, key, certificate)
    if problem is not None:
        raise NotIssued(f"the certificate that was issued {problem}")
    return IssuedCertificate(key, certificate, tuple(chain))


def _problem(
    clock: IReactorTime, template: Template, key: PrivateKey, certificate: x509.Certificate
) -> str | None:
    try:
        if certificate.public_key() != key.public_key():
            return "is for another key"
    except ValueError as error:
        return f"is malformed: {error}"
    end = certificate.not_valid_after_utc
    if utc_now(clock) >= end:
        return f"has expired already, at {end:%F %T} UTC: compare the machines' clocks"
    return template.problem(certificate)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "nobody"


def _names_of(names: x509.SubjectAlternativeName | None) -> frozenset[str]:
    if names is None:
        return frozenset()
    return frozenset(
        [
            *names.get_values_for_type(x509.DNSName),
            *map(str, names.get_values_for_type(x509.IPAddress)),
            *names.get_values_for_type(x509.UniformResourceIdentifier),
        ]
    )
