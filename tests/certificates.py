"""Certificates as other authorities might issue them."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

HOUR = datetime.timedelta(hours=1)
DAY = 24 * HOUR


def common_name(text: str) -> x509.Name:
    """Return a name that consists of a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificate_builder(
    subject: x509.Name,
    key: CertificatePublicKeyTypes,
    issuer: x509.Name | None = None,
    *,
    begin: datetime.timedelta = -HOUR,
    end: datetime.timedelta = DAY,
) -> x509.CertificateBuilder:
    """Return an unsigned certificate without extensions, self-issued without an ``issuer``.

    It is valid from ``begin`` to ``end``, counted from now.
    """
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begin)
        .not_valid_after(now + end)
    )
