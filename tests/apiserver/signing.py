"""Certificates for CertificateSigningRequests, as issued by the signers of Kubernetes.

Each signer accepts the same requests as kube-controller-manager (pkg/controller/certificates/
signer/signer.go and pkg/apis/certificates/helpers.go), and issues the same certificates
(pkg/controller/certificates/authority/policies.go): with only the names and usages of the
request.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.certificates import common_name
from yurttunnel.pki.credentials import PrivateKey, new_key

CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"

BACKDATE = datetime.timedelta(minutes=5)
"""How long before its issue the validity of a certificate starts."""

SHORT = datetime.timedelta(hours=8)
"""The duration of certificates shorter than this is not reduced by :data:`BACKDATE`."""

SHORTEST = datetime.timedelta(minutes=10)
"""The minimum duration of a certificate, unless the signer's own is shorter."""

_NODES_GROUP, _NODE_PREFIX = "system:nodes", "system:node:"

_SIGNATURE, _ENCIPHERMENT = "digital signature", "key encipherment"
_KEY_USAGES = {
    "signing": "digital_signature",
    _SIGNATURE: "digital_signature",
    "content commitment": "content_commitment",
    _ENCIPHERMENT: "key_encipherment",
    "key agreement": "key_agreement",
    "data encipherment": "data_encipherment",
}
_EXTENDED_USAGES = {
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
}


class NotSigned(Exception):
    """A request that its signer rejects; the message is one line."""


@dataclass(frozen=True, slots=True)
class SigningAuthority:
    """The certificate and key of a certificate authority."""

    certificate: x509.Certificate
    key: PrivateKey

    @classmethod
    def make(
        cls, name: str, now: datetime.datetime, lifetime: datetime.timedelta
    ) -> SigningAuthority:
        """Create an authority with ``name`` and a self-signed certificate."""
        key = new_key()
        subject = common_name(name)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            x509.CertificateBuilder(subject, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage({"key_cert_sign", "crl_sign"}), critical=True)
            .add_extension(identifier, critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def sign(
        self,
        request: x509.CertificateSigningRequest,
        usages: Sequence[str],
        lifetime: datetime.timedelta,
        now: datetime.datetime,
    ) -> x509.Certificate:
        """Issue the certificate for ``request``, valid for ``lifetime`` from ``now``."""
        end = now + (lifetime if lifetime < SHORT else lifetime - BACKDATE)
        issuer = self.key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(self.certificate.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(min(end, self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
            )
        )
        of_the_key = {_KEY_USAGES[one] for one in usages if one in _KEY_USAGES}
        if of_the_key:
            # An extension without any usage is invalid (RFC 5280 section 4.2.1.3).
            builder = builder.add_extension(_key_usage(of_the_key), critical=True)
        extended = [_EXTENDED_USAGES[one] for one in usages if one in _EXTENDED_USAGES]
        if extended:
            builder = builder.add_extension(x509.ExtendedKeyUsage(extended), critical=False)
        names = _alternative_names(request)
        if names is not None:
            builder = builder.add_extension(names, critical=not list(request.subject))
        return builder.sign(self.key, hashes.SHA256())


def lifetime(requested: int | None, longest: datetime.timedelta) -> datetime.timedelta:
    """Return the validity of a certificate: the requested seconds, within the bounds."""
    if requested is None:
        return longest
    # A ``timedelta`` overflows with too many seconds.
    return min(longest, max(SHORTEST, datetime.timedelta(seconds=min(requested, 1 << 31))))


def check_request(
    signer: str, request: x509.CertificateSigningRequest, usages: Sequence[str]
) -> None:
    """Raise :class:`NotSigned` if ``signer``, one of :data:`SIGNERS`, rejects a request."""
    SIGNERS[signer](request, frozenset(usages))


def _check_client(request: x509.CertificateSigningRequest, usages: frozenset[str]) -> None:
    for usage in sorted(usages - {_SIGNATURE, _ENCIPHERMENT, "client auth"}):
        raise NotSigned(f"invalid usage for client certificate: {usage}")
    if "client auth" not in usages:
        raise NotSigned("missing required usage for client certificate: client auth")


def _check_kubelet_client(request: x509.CertificateSigningRequest, usages: frozenset[str]) -> None:
    _check_organization(request)
    for kind, word in _NAMES.items():
        if _names_of(request, kind):
            raise NotSigned(f"{word} subjectAltNames are not allowed")
    _check_common_name(request)
    _check_usages(usages, "client auth")


def _check_kubelet_serving(request: x509.CertificateSigningRequest, usages: frozenset[str]) -> None:
    _check_organization(request)
    if not _names_of(request, x509.DNSName) and not _names_of(request, x509.IPAddress):
        raise NotSigned("DNS or IP subjectAltName is required")
    for kind in (x509.RFC822Name, x509.UniformResourceIdentifier):
        if _names_of(request, kind):
            raise NotSigned(f"{_NAMES[kind]} subjectAltNames are not allowed")
    _check_usages(usages, "server auth")
    _check_common_name(request)


_Check = Callable[[x509.CertificateSigningRequest, frozenset[str]], None]

SIGNERS: Mapping[str, _Check] = {
    CLIENT: _check_client,
    KUBELET_CLIENT: _check_kubelet_client,
    KUBELET_SERVING: _check_kubelet_serving,
}
"""The signers, with the checks of their requests."""

_NAMES: Mapping[type[x509.GeneralName], str] = {
    x509.DNSName: "DNS",
    x509.RFC822Name: "Email",
    x509.IPAddress: "IP",
    x509.UniformResourceIdentifier: "URI",
}


def _check_organization(request: x509.CertificateSigningRequest) -> None:
    found = request.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if [one.value for one in found] != [_NODES_GROUP]:
        raise NotSigned("subject organization is not system:nodes")


def _check_common_name(request: x509.CertificateSigningRequest) -> None:
    found = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not found or not str(found[-1].value).startswith(_NODE_PREFIX):
        raise NotSigned("subject common name does not begin with system:node:")


def _check_usages(usages: frozenset[str], purpose: str) -> None:
    desired = {_SIGNATURE, _ENCIPHERMENT, purpose}
    if usages not in (desired, desired - {_ENCIPHERMENT}):
        raise NotSigned(f"usages did not match [{' '.join(sorted(desired))}]")


def _names_of(request: x509.CertificateSigningRequest, kind: type[x509.GeneralName]) -> bool:
    names = _alternative_names(request)
    return names is not None and any(isinstance(one, kind) for one in names)


def _alternative_names(
    request: x509.CertificateSigningRequest,
) -> x509.SubjectAlternativeName | None:
    """Return the alternative names of the four types that signers copy."""
    try:
        extension = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        raise NotSigned(f"its subjectAltNames cannot be read: {error}") from None
    kept = [one for one in extension.value if type(one) in _NAMES]
    return x509.SubjectAlternativeName(kept) if kept else None


def _key_usage(desired: set[str]) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature="digital_signature" in desired,
        content_commitment="content_commitment" in desired,
        key_encipherment="key_encipherment" in desired,
        data_encipherment="data_encipherment" in desired,
        key_agreement="key_agreement" in desired,
        key_cert_sign="key_cert_sign" in desired,
        crl_sign="crl_sign" in desired,
        encipher_only=False,
        decipher_only=False,
    )
