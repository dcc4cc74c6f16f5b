"""Certificates for the peers of the comparison, of the same kind as the tunnel's: P-256."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=1)


@dataclass(frozen=True)
class KeyPair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates and stores them in ``directory``; its own is ``certificate``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("benchmark authority")
        usage = x509.BasicConstraints(ca=True, path_length=0)
        made = self._builder(self._name, self._key.public_key()).add_extension(usage, True)
        self.certificate = directory / "authority.crt"
        self._write(self.certificate, made)

    def issue(
        self, name: str, subject: x509.Name | None = None, further: Sequence[x509.GeneralName] = ()
    ) -> KeyPair:
        """Sign a certificate for ``name`` and 127.0.0.1, valid for either end of a connection.

        ``further`` are additional names; ``subject`` replaces ``name`` as the subject.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1")), *further]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            self._builder(subject or _name(name), key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), False)
            .add_extension(x509.ExtendedKeyUsage(usages), False)
        )
        pair = KeyPair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        pair.key.touch(0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self._write(pair.certificate, made)
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            self._name, subject, key, x509.random_serial_number(), now - _VALID, now + _VALID
        )

    def _write(self, path: Path, made: x509.CertificateBuilder) -> None:
        path.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
