"""What a certificate is to be like, and one that has been issued."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from yurttunnel.pki.authority import KUBELET_CLIENT_NAME
from yurttunnel.pki.cluster_identity import common_name_of
from yurttunnel.pki.credentials import Credentials, PrivateKey, is_issued_by
from yurttunnel.pki.identity import (
    MAX_HOST_LENGTH,
    NODE_ORGANIZATION,
    Identifiers,
    subject_alternative_names,
)

SERVING_SIGNER = "kubernetes.io/kubelet-serving"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
SERVER_NAME = "system:node:tunnel-server"
"""The common name of the server's serving certificate; its signer demands the prefix."""
SERVER_ORGANIZATION = "system:nodes"

SERVER_AUTH = "server auth"
CLIENT_AUTH = "client auth"
_USAGES_OF_KEYS = ("digital signature", "key encipherment")
_EXTENDED_USAGES = {
    SERVER_AUTH: ExtendedKeyUsageOID.SERVER_AUTH,
    CLIENT_AUTH: ExtendedKeyUsageOID.CLIENT_AUTH,
}

Address = IPv4Address | IPv6Address
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class CertificateTemplate:
    """What is asked of a signer of the cluster.

    ``usage`` is one of :data:`SERVER_AUTH` and :data:`CLIENT_AUTH`; what else a
    ``CertificateSigningRequest`` has in its ``usages`` is the same for all. The order of the
    names is that of the request; nothing else depends on it.
    """

    signer: str
    common_name: str
    organization: str
    usage: str
    dns_names: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()
    uris: tuple[str, ...] = ()

    @property
    def usages(self) -> list[str]:
        """The usages as the API names them (``KeyUsage`` of certificates.k8s.io/v1)."""
        return [*_USAGES_OF_KEYS, self.usage]

    def covers(self, other: CertificateTemplate) -> bool:
        """Return whether a certificate of this template does where one of ``other`` is wanted."""
        return self.without_names() == other.without_names() and self._names() >= other._names()

    def is_same(self, other: CertificateTemplate) -> bool:
        """Return whether both ask for the same, in whatever order."""
        return self.covers(other) and other.covers(self)

    def without_names(self) -> CertificateTemplate:
        """Return the same without alternative names: what it is for rather than where."""
        return replace(self, dns_names=(), addresses=(), uris=())

    def problem(self, certificate: x509.Certificate) -> str | None:
        """Complete "the certificate ..." when it is not what is asked for; extra names are fine."""
        try:
            subject = certificate.subject
            extended = _extension(certificate, x509.ExtendedKeyUsage)
            names = _extension(certificate, x509.SubjectAlternativeName)
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            return f"is malformed: {error}"
        for kind, desired in (
            (NameOID.COMMON_NAME, self.common_name),
            (NameOID.ORGANIZATION_NAME, self.organization),
        ):
            found = [attribute.value for attribute in subject.get_attributes_for_oid(kind)]
            if found != [desired]:
                return f"is for {found!r} and not for {desired!r}"
        if extended is None or _EXTENDED_USAGES[self.usage] not in extended:
            return f"is not meant for {self.usage}"
        missing = sorted(self._names() - _names_of(names))
        return f"lacks {', '.join(missing)}" if missing else None

    def request(self, key: PrivateKey) -> bytes:
        """Make the PKCS #10 request for a certificate of ``key``, in PEM form."""
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.organization),
                x509.NameAttribute(NameOID.COMMON_NAME, self.common_name),
            ]
        )
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in self.dns_names]
        names += [x509.IPAddress(address) for address in self.addresses]
        names += [x509.UniformResourceIdentifier(uri) for uri in self.uris]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _names(self) -> frozenset[str]:
        return frozenset([*self.dns_names, *map(str, self.addresses), *self.uris])


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate with its key; ``chain`` is sent after it."""

    key: PrivateKey
    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...] = ()

    def credentials(self, authorities: Sequence[x509.Certificate]) -> Credentials:
        """Join it with the authorities that the peers' certificates have to come from."""
        return Credentials(self.key, self.certificate, self.chain, tuple(authorities))

    def is_from(self, authorities: Sequence[x509.Certificate]) -> bool:
        """Return whether one of the authorities has issued it, or one of its chain."""
        links = (self.certificate, *self.chain)
        return any(is_issued_by(link, each) for link in links for each in authorities)


def serving_template(
    hosts: Collection[str] = (), addresses: Collection[Address] = ()
) -> CertificateTemplate:
    """Describe the certificate of a server by which agents and callers know it."""
    return CertificateTemplate(
        SERVING_SIGNER,
        SERVER_NAME,
        SERVER_ORGANIZATION,
        SERVER_AUTH,
        tuple(sorted(set(hosts))),
        tuple(sorted(set(addresses), key=lambda a: (a.version, int(a)))),
    )


def proxy_client_template() -> CertificateTemplate:
    """Describe the certificate by which kubelets and the other replicas know a server."""
    return CertificateTemplate(CLIENT_SIGNER, KUBELET_CLIENT_NAME, NODE_ORGANIZATION, CLIENT_AUTH)


def agent_template(node: str, identifiers: Identifiers) -> CertificateTemplate:
    """Describe the certificate of a node; raises ``BadIdentity`` for what none can have."""
    names = subject_alternative_names(node, identifiers, longest=MAX_HOST_LENGTH)
    return CertificateTemplate(
        CLIENT_SIGNER,
        common_name_of(node),
        NODE_ORGANIZATION,
        CLIENT_AUTH,
        tuple(name.value for name in names if isinstance(name, x509.DNSName)),
        tuple(
            name.value
            for name in names
            if isinstance(name, x509.IPAddress)
            and isinstance(name.value, IPv4Address | IPv6Address)
        ),
        tuple(name.value for name in names if isinstance(name, x509.UniformResourceIdentifier)),
    )


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


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
