"""Certificates of an attacker: signed by mistake by the cluster's authority, or by another key."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier
from OpenSSL import SSL

from tests.certificates import HOUR, certificate_builder, common_name
from tests.pki.support import Issuer, handshake
from yurttunnel.pki.credentials import Credentials

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def weak_key() -> Key:
    """Make an RSA key of 1024 bits, which has not been enough since 2013 (NIST SP 800-131A)."""
    return rsa.generate_private_key(65537, 1024)


@dataclass(frozen=True)
class CertificateSpec:
    """The contents of a certificate; the defaults make a valid one for ``usage``."""

    name: str
    usage: ObjectIdentifier
    names: tuple[x509.GeneralName, ...] = ()
    begin: datetime.timedelta = -HOUR
    end: datetime.timedelta = HOUR
    weak: bool = False
    is_authority: bool = False

    def altered(self, **changes: object) -> CertificateSpec:
        """Return a copy with ``changes``."""
        return replace(self, **changes)

    def signed_by(self, issuer: Issuer) -> Credentials:
        """Sign the certificate with the authority of ``issuer``."""
        authority = issuer.authority
        return self._signed(authority._key, authority.certificate.subject, issuer)

    def signed_by_impostor(self, issuer: Issuer) -> Credentials:
        """Sign with a new key in the name of the authority of ``issuer``."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._signed(key, issuer.authority.certificate.subject, issuer)

    def signed_by_leaf(self, leaf: Credentials, issuer: Issuer) -> Credentials:
        """Sign with ``leaf``, which is no authority, and append ``leaf`` to the chain."""
        made = self._signed(leaf.key, leaf.certificate.subject, issuer)
        return replace(made, chain=(leaf.certificate,))

    def _signed(self, signer: Key, issuer_name: x509.Name, issuer: Issuer) -> Credentials:
        key = weak_key() if self.weak else ec.generate_private_key(ec.SECP256R1())
        subject = common_name(self.name)
        builder = (
            certificate_builder(
                subject, key.public_key(), issuer_name, begin=self.begin, end=self.end
            )
            .add_extension(x509.BasicConstraints(self.is_authority, None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([self.usage]), critical=False)
        )
        if self.names:
            builder = builder.add_extension(x509.SubjectAlternativeName(self.names), False)
        certificate = builder.sign(signer, hashes.SHA256())
        return Credentials(key, certificate, (), (issuer.authority.certificate,))


def attacker_context(
    credentials: Credentials | None, protocols: list[bytes], version: int
) -> SSL.Context:
    """Make the context of a client that accepts every certificate and presents any."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(version)
    context.set_max_proto_version(version)
    # At this level OpenSSL presents weak keys and offers old versions.
    context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
    if protocols:
        context.set_alpn_protos(protocols)
    if credentials is not None:
        context.use_certificate(credentials.certificate)
        context.use_privatekey(credentials.key)
        for certificate in credentials.chain:
            context.add_extra_chain_cert(certificate)
    return context


def attack(context: SSL.Context, server: SSL.Connection) -> str | None:
    """Run a handshake as the attacker. Return the error, or ``None`` when it succeeds."""
    client = SSL.Connection(context, None)
    client.set_tlsext_host_name(b"edge-1")
    client.set_connect_state()
    try:
        handshake(client, server)
    except SSL.Error as error:
        return str(error)
    return None
