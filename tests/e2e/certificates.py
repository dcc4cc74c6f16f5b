"""Certificates that an attacker or a misconfigured agent would present."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from twisted.internet.endpoints import SSL4ClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.ssl import Certificate, optionsForClientTLS, trustRootFromCertificates

from tests.certificates import DAY, HOUR, certificate_builder, common_name
from tests.e2e.clients import Peer

AGENT_PROTOCOL = b"yurttunnel/1"


class Identity:
    """A certificate with its key."""

    def __init__(self, certificate: x509.Certificate, key) -> None:
        self.certificate = certificate
        self.key = key


def authority_of(state: str) -> Identity:
    """Return the authority of a server's state directory."""
    directory = Path(state)
    (certificate,) = x509.load_pem_x509_certificates((directory / "ca.crt").read_bytes())
    return Identity(certificate, load_pem_private_key((directory / "ca.key").read_bytes(), None))


def identity_of(state: str) -> Identity:
    """Return the certificate and key in an agent's state directory, whatever the files' names."""
    certificates, keys = [], []
    for path in sorted(Path(state).rglob("*")):
        # A file that is being written is renamed soon.
        if not path.is_file() or path.name.startswith(".new-"):
            continue
        content = path.read_bytes()
        if b"BEGIN CERTIFICATE" in content:
            certificates += x509.load_pem_x509_certificates(content)
        if b"PRIVATE KEY" in content:
            keys.append(load_pem_private_key(content, None))
    for certificate in certificates:
        for key in keys:
            if key.public_key() == certificate.public_key():
                return Identity(certificate, key)
    raise AssertionError(f"{state} holds no certificate with its key")


def reissue(
    original: x509.Certificate,
    authority: Identity,
    *,
    expired: bool = False,
) -> Identity:
    """Return a copy of a certificate with a new key, issued by ``authority``.

    With ``expired`` it expired an hour ago.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = certificate_builder(
        original.subject,
        key.public_key(),
        authority.certificate.subject,
        begin=-DAY,
        end=-HOUR if expired else HOUR,
    )
    for extension in original.extensions:
        # The key identifiers are those of the old keys.
        if not isinstance(extension.value, x509.AuthorityKeyIdentifier | x509.SubjectKeyIdentifier):
            builder = builder.add_extension(extension.value, extension.critical)
    return Identity(builder.sign(authority.key, hashes.SHA256()), key)


def foreign_authority() -> Identity:
    """Return an untrusted authority with the same kind of name."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        certificate_builder(common_name("some other authority"), key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Identity(certificate, key)


async def connect_with_tls(
    reactor,
    port: int,
    peer: Peer,
    trusted: x509.Certificate,
    identity: Identity | None,
    *protocols: bytes,
) -> Peer:
    """Connect ``peer`` over TLS as ``identity``, and verify the server against ``trusted``.

    It offers ``protocols`` by ALPN; the default is the agents' protocol.
    """
    extra = {}
    if identity is not None:
        extra = {"privateKey": identity.key, "certificate": identity.certificate}
    options = optionsForClientTLS(
        "127.0.0.1",
        trustRoot=trustRootFromCertificates(
            [Certificate.loadPEM(trusted.public_bytes(Encoding.PEM).decode())]
        ),
        acceptableProtocols=list(protocols or (AGENT_PROTOCOL,)),
        extraCertificateOptions=extra,
    )
    endpoint = SSL4ClientEndpoint(reactor, "127.0.0.1", port, options)
    await endpoint.connect(Factory.forProtocol(lambda: peer))
    return peer
