"""Secrets and certificates as on disk."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.certificates import common_name

NOW = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)

KEY = ec.generate_private_key(ec.SECP256R1())
KEY_PEM = KEY.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
).decode()

JOIN_TOKEN = f"{'0a' * 8}.{'1b' * 16}.sha256:{'2c' * 32}"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"


def certificate(begin: datetime.datetime, end: datetime.datetime) -> str:
    """Return a certificate for ``edge-1``, as PEM."""
    name = common_name("edge-1")
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 4711, begin, end)
    signed = builder.sign(KEY, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()
