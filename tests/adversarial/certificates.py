"""Certificates of an attacker, signed by an authority that made a mistake or by none."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from OpenSSL import SSL

from tests.pki.support import Issuer, handshake
from yurttunnel.pki.credentials import Credentials

HOUR = datetime.timedelta(hours=1)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def weak_key() -> Key:
    """Make an RSA key of 1024 bits, which has not been enough since 2013 (NIST SP 800-131A)."""
    return rsa.generate_private_key(65537, 1024)


@dataclass(frozen=True)
class Wish:
    """What a certificate says; as it is, it is a good one for ``usage``."""

    name: str
    usage: ObjectIdentifier
    names: tuple[x509.GeneralName, ...] = ()
    begin: datetime.timedelta = -HOUR
    end: datetime.timedelta = HOUR
    weak: bool = False
    is_authority: bool = False

    def but(self, **changes: object) -> Wish:
        """Return the same with something changed."""
        return replace(self, **changes)

    def signed_by(self, issuer: Issuer) -> Credentials:
        """Have the authority of ``issuer`` sign it."""
        authority = issuer.authority
        return self._signed(authority._key, authority.certificate.subject, issuer)

    def signed_by_impostor(self, issuer: Issuer) -> Credentials:
        """Sign it with a key of our own, in the name of the authority of ``issuer``."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._signed(key, issuer.authority.certificate.subject, issuer)

    def signed_by_leaf(self, leaf: Credentials, issuer: Issuer) -> Credentials:
        """Sign it with a certificate of ``issuer`` that is no authority's, and append that."""
        made = self._signed(leaf.key, leaf.certificate.subject, issuer)
        return replace(made, chain=(leaf.certificate,))

    def _signed(self, signer: Key, issuer_name: x509.Name, issuer: Issuer) -> Credentials:
        key = weak_key() if self.weak else ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)]))
            .issuer_name(issuer_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + self.begin)
            .not_valid_after(now + self.end)
            .add_extension(x509.BasicConstraints(self.is_authority, None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([self.usage]), critical=False)
        )
        if self.names:
            builder = builder.add_extension(x509.SubjectAlternativeName(self.names), False)
        certificate = builder.sign(signer, hashes.SHA256())
        return Credentials(key, certificate, (), (issuer.authority.certificate,))


def attacker(credentials: Credentials | None, protocols: list[bytes], version: int) -> SSL.Context:
    """Make the context of a client that believes anybody and shows anything."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(version)
    context.set_max_proto_version(version)
    # At this level OpenSSL itself shows weak keys and old versions.
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
    """Run a handshake as the attacker; give why it fails, ``None`` when it succeeds."""
    client = SSL.Connection(context, None)
    client.set_tlsext_host_name(b"edge-1")
    client.set_connect_state()
    try:
        handshake(client, server)
    except SSL.Error as error:
        return str(error)
    return None
