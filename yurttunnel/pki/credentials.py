"""A key with its certificate and the authorities that verify the peer."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from yurttunnel.pki.directory import StateDirectory, StateError

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)

BACKDATE = datetime.timedelta(minutes=5)
"""How long before its issue a certificate is valid: the tolerated difference between two clocks."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class BadCredentials(Exception):
    """A key, certificate or authority that cannot be used; one line describes why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The key, the certificate and the trusted authorities of one end of a TLS connection.

    ``chain`` is sent after the certificate. The peer's certificate must be issued by one of
    ``authorities``. Every source of certificates creates instances of this class and passes them to
    the contexts.
    """

    key: PrivateKey
    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    authorities: tuple[x509.Certificate, ...]

    def check(self, now: datetime.datetime) -> None:
        """Raise :class:`BadCredentials` unless the credentials can be used at ``now`` (UTC)."""
        if self.key.public_key() != self.certificate.public_key():
            raise BadCredentials("the key does not belong to the certificate")
        if now >= self.certificate.not_valid_after_utc:
            raise BadCredentials(
                f"the certificate expired at {self.certificate.not_valid_after_utc:%F %T} UTC"
            )
        if not self.authorities:
            raise BadCredentials("no authority is given that the peer's certificate could be from")


def pin_of(key: x509.Certificate | ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> str:
    """Return the SHA-256 of a SubjectPublicKeyInfo in hex, which join tokens pin (RFC 7469)."""
    public = key.public_key() if isinstance(key, x509.Certificate) else key
    encoded = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key, ECDSA P-256 as everywhere in this package."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: PrivateKey) -> bytes:
    """Encode a private key as PKCS #8, unencrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_from_pem(pem: bytes) -> PrivateKey:
    """Decode a private key; raises :class:`BadCredentials`."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadCredentials("it is not an unencrypted private key in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise BadCredentials("its key is neither an elliptic curve nor an RSA key")
    return key


def certificates_to_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Encode certificates, one after the other."""
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in certificates)


def certificates_from_pem(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Decode one or more certificates; raises :class:`BadCredentials`."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except (ValueError, x509.InvalidVersion) as error:
        raise BadCredentials("it does not hold certificates in PEM form") from error


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether the authority's key has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def extension_of(
    certified: x509.Certificate | x509.CertificateSigningRequest, kind: type[_Extension]
) -> _Extension | None:
    """Return an extension of a certificate or a request, ``None`` if it has none of that kind."""
    try:
        return certified.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def load_key(directory: StateDirectory, name: str) -> PrivateKey | None:
    """Read a private key from a file, ``None`` if none exists; raises :class:`StateError`."""
    pem = directory.read(name, secret=True)
    if pem is None:
        return None
    try:
        return key_from_pem(pem)
    except BadCredentials as error:
        raise StateError(f"{directory.path / name}: {error}: restore or remove it") from error


def load_certificates(directory: StateDirectory, name: str) -> tuple[x509.Certificate, ...] | None:
    """Read certificates from a file, ``None`` if none exists; raises :class:`StateError`."""
    pem = directory.read(name)
    if pem is None:
        return None
    try:
        return certificates_from_pem(pem)
    except BadCredentials as error:
        raise StateError(f"{directory.path / name}: {error}: restore or remove it") from error
