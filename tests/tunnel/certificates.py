"""Throw-away certificates, and the TLS of both ends with them."""

from __future__ import annotations

from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
)
from zope.interface import implementer

from tests.certificates import certificate_builder, common_name

HOST = "server.test"


class ThrowAwayAuthority:
    """A CA that is valid for a day."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = common_name(name)
        self.certificate = self._sign(self._name, self._key, True)

    def issue(self, name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """Return a key and a certificate for ``name``."""
        key = ec.generate_private_key(ec.SECP256R1())
        return key, self._sign(common_name(name), key, False)

    def _sign(self, name, key, is_authority):
        builder = certificate_builder(name, key.public_key(), self._name)
        constraints = x509.BasicConstraints(is_authority, None)
        builder = builder.add_extension(constraints, critical=True)
        if not is_authority:
            host = name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
            names = x509.SubjectAlternativeName([x509.DNSName(host)])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


@cache
def authority() -> ThrowAwayAuthority:
    """Return the CA that all tests share, since creating keys takes time."""
    return ThrowAwayAuthority("authority")


def _context(method: int, name: str | None) -> SSL.Context:
    """Return a context that trusts only this CA, with a certificate for ``name``."""
    context = SSL.Context(method)
    store = context.get_cert_store()
    assert store is not None
    store.add_cert(X509.from_cryptography(authority().certificate))
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
    if name is not None:
        key, certificate = authority().issue(name)
        context.use_certificate(certificate)
        context.use_privatekey(key)
    return context


@implementer(IOpenSSLServerConnectionCreator)
class ServerTLS:
    """The TLS of a server that speaks ``protocols`` and requires a client certificate."""

    def __init__(self, protocols: list[bytes]) -> None:
        self._context = _context(SSL.TLS_SERVER_METHOD, HOST)
        self._context.set_alpn_select_callback(
            lambda connection, offered: next(
                (name for name in offered if name in protocols), SSL.NO_OVERLAPPING_PROTOCOLS
            )
        )

    def serverConnectionForTLS(self, tlsProtocol: object) -> SSL.Connection:
        """Create the state of a connection."""
        return SSL.Connection(self._context, None)


@implementer(IOpenSSLClientConnectionCreator)
class ClientTLS:
    """The TLS of a client that speaks ``protocols``."""

    def __init__(self, protocols: list[bytes], name: str | None = "edge-1") -> None:
        self._context = _context(SSL.TLS_CLIENT_METHOD, name)
        if protocols:
            self._context.set_alpn_protos(protocols)

    def clientConnectionForTLS(self, tlsProtocol: object) -> SSL.Connection:
        """Create the state of a connection."""
        return SSL.Connection(self._context, None)
