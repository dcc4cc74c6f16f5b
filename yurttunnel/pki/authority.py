"""The embedded certificate authority of the standalone mode.

The authority only signs: its callers authorize the names and pass them as arguments. Only the key
of a certificate request is used, never its names.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import (
    BACKDATE,
    Credentials,
    PrivateKey,
    certificates_to_pem,
    key_to_pem,
    load_certificates,
    load_key,
    new_key,
    pin_of,
)
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.identity import Identifiers, subject_alternative_names
from yurttunnel.pki.names import NODE_ORGANIZATION

AUTHORITY_CERTIFICATE = "ca.crt"
AUTHORITY_KEY = "ca.key"

SERVER_COMMON_NAME = "yurttunnel-server"

DAY = 86400.0
DEFAULT_NODE_LIFETIME = 30 * DAY
"""Seconds of validity of a node's certificate, which is renewed after two thirds."""
SERVER_LIFETIME = 90 * DAY
CALLER_LIFETIME = 365 * DAY
_AUTHORITY_LIFETIME = 10 * 365 * DAY
_EARLIEST_TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
"""This code is newer. A clock with an earlier time has never been set, and an authority with a
lifetime of ten years from 1970 would be expired once the clock is set."""

_log = Logger()

_RSA_BITS = range(2048, 4096 + 1)
"""Shorter keys are insecure, and longer ones cost the server time to verify."""
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class BadRequest(Exception):
    """A certificate request that cannot be signed; one line describes why."""


class AuthorityExpired(Exception):
    """The authority's own certificate has expired by this machine's clock; one line gives the time.

    Every certificate that it would sign would have expired as well.
    """


def key_of_request(pem: str) -> PublicKey:
    """Return the key for which a certificate is requested.

    The request's signature proves possession of the private key; the rest of the request is
    ignored. Raises :class:`BadRequest`, also for keys that are too weak.
    """
    try:
        request = x509.load_pem_x509_csr(pem.encode("ascii"))
        key = _check_key(request.public_key())
        signed = request.is_signature_valid
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm, InvalidSignature):
        raise BadRequest("the certificate request is not a PKCS #10 request in PEM form") from None
    if not signed:
        raise BadRequest("the certificate request is not signed by the key that it contains")
    return key


def _check_key(key: object) -> PublicKey:
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size in _RSA_BITS:
        return key
    raise BadRequest(
        "the key of the certificate request is too weak, too long or of an unsupported kind:"
        " use P-256"
    )


def request_certificate(key: PrivateKey) -> str:
    """Return a certificate request for ``key``, in PEM form, without names."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = builder.sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode("ascii")


class Authority:
    """Signs certificates for nodes, for the server itself and for callers.

    ``clock`` gives the time of issue. Lifetimes are in seconds. Certificates never outlive the
    authority's own, and are valid from five minutes before their issue.
    """

    def __init__(self, clock: IReactorTime, certificate: x509.Certificate, key: PrivateKey) -> None:
        self._clock = clock
        self._key = key
        self.certificate = certificate
        self.pin = pin_of(certificate)

    @classmethod
    def open(cls, clock: IReactorTime, directory: StateDirectory) -> Authority:
        """Load the authority from ``ca.crt`` and ``ca.key``, or create both if neither exists.

        Raises :class:`StateError`.
        """
        certificates = load_certificates(directory, AUTHORITY_CERTIFICATE)
        key = load_key(directory, AUTHORITY_KEY)
        path = directory.path
        now = utc_now(clock)
        if certificates is None:
            if now < _EARLIEST_TIME:
                raise StateError(
                    f"no authority can be created in {path} while the clock of this machine says"
                    f" {now:%F %T} UTC: set it first"
                )
            if key is None:
                # The key is written first: a process may have died before it wrote the certificate.
                key = new_key()
                directory.write(AUTHORITY_KEY, key_to_pem(key))
            certificates = (_self_signed(key, now),)
            directory.write(AUTHORITY_CERTIFICATE, certificates_to_pem(certificates))
        if key is None:
            raise StateError(
                f"{path / AUTHORITY_KEY} is missing while {AUTHORITY_CERTIFICATE} exists: restore"
                f" it, or remove {AUTHORITY_CERTIFICATE} and enroll all nodes again"
            )
        certificate = certificates[0]
        if certificate.public_key() != key.public_key():
            raise StateError(
                f"{path / AUTHORITY_KEY} does not belong to {AUTHORITY_CERTIFICATE}:"
                " restore the pair from a backup"
            )
        end = certificate.not_valid_after_utc
        if now >= end:
            raise StateError(
                f"{path / AUTHORITY_CERTIFICATE} ended at {end:%F %T} UTC, and the clock of this"
                f" machine says {now:%F %T} UTC. If the clock is wrong, set it. If it is right,"
                " move the directory away and enroll all nodes again"
            )
        authority = cls(clock, certificate, key)
        problem = authority.problem()
        if problem is not None:
            # Only a warning: the clock may be set soon.
            _log.warn("no agent can connect yet: {problem}", problem=problem)
        return authority

    def problem(self) -> str | None:
        """Return why peers reject the authority, while its certificate is not valid yet."""
        now, begin = utc_now(self._clock), self.certificate.not_valid_before_utc
        if now >= begin:
            return None
        return (
            f"the authority in ca.crt begins at {begin:%F %T} UTC, and the clock of"
            f" this machine says {now:%F %T} UTC, so agents reject it. If the clock is wrong, set"
            " it. If it is right, it was ahead when the authority was created: move the state"
            " directory away and enroll all nodes again"
        )

    def credentials(self, key: PrivateKey, certificate: x509.Certificate) -> Credentials:
        """Combine a certificate from here with its key; peers must have one from here, too."""
        return Credentials(key, certificate, (self.certificate,), (self.certificate,))

    def sign_node(
        self,
        node: str,
        identifiers: Identifiers,
        key: PublicKey,
        enrolment: str,
        lifetime: float = DEFAULT_NODE_LIFETIME,
    ) -> x509.Certificate:
        """Sign a node's certificate; raises ``BadIdentity`` for names that no node can have."""
        names = subject_alternative_names(node, identifiers, enrolment)
        subject = _name(node, NODE_ORGANIZATION)
        return self.sign(subject, key, names, ExtendedKeyUsageOID.CLIENT_AUTH, lifetime)

    def sign_server(
        self,
        key: PublicKey,
        hosts: Iterable[str],
        addresses: Iterable[IPv4Address | IPv6Address],
        lifetime: float = SERVER_LIFETIME,
    ) -> x509.Certificate:
        """Sign a certificate of the server for the names and addresses by which it is dialed."""
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in sorted(set(hosts))]
        sorted_addresses = sorted(set(addresses), key=lambda a: (a.version, int(a)))
        names += [x509.IPAddress(address) for address in sorted_addresses]
        subject = _name(SERVER_COMMON_NAME)
        return self.sign(subject, key, names, ExtendedKeyUsageOID.SERVER_AUTH, lifetime)

    def sign_client(
        self,
        key: PublicKey,
        name: str,
        organization: str | None = None,
        lifetime: float = CALLER_LIFETIME,
    ) -> x509.Certificate:
        """Sign a certificate for a TLS client with the common name ``name``.

        It has no alternative names, so it cannot pass for a node's certificate, whatever the name.
        """
        subject = _name(name, organization)
        return self.sign(subject, key, [], ExtendedKeyUsageOID.CLIENT_AUTH, lifetime)

    def sign(
        self,
        subject: x509.Name,
        key: PublicKey,
        names: list[x509.GeneralName],
        usage: x509.ObjectIdentifier,
        lifetime: float,
    ) -> x509.Certificate:
        """Sign a certificate of any kind; raises :class:`AuthorityExpired`."""
        now = utc_now(self._clock)
        end = now + datetime.timedelta(seconds=lifetime)
        last = self.certificate.not_valid_after_utc
        if now >= last:
            raise AuthorityExpired(
                f"the server's authority expired at {last:%F %T} UTC, and the clock of its machine"
                f" says {now:%F %T} UTC"
            )
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(min(end, last))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _self_signed(key: PrivateKey, now: datetime.datetime) -> x509.Certificate:
    # The random part distinguishes the authorities of several state directories in listings.
    subject = _name(f"yurttunnel authority {x509.random_serial_number() & 0xFFFFFFFF:08x}")
    public = key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + datetime.timedelta(seconds=_AUTHORITY_LIFETIME))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    return builder.sign(key, hashes.SHA256())


def _name(common_name: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
