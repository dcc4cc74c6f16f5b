"""A hub's certificates, stored where it looks for them, so that it requests none at its start."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from benchmarks.certificates import Authority
from benchmarks.hub.objects import NODE

_USER = x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{NODE}")
_GROUPS = [
    x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)
    for name in ("openyurt:yurthub", "system:nodes")
]


def prepare(directory: Path, authority: Authority) -> None:
    """Store the certificates and the CA in the directory for ``--root-dir``."""
    pki = directory / "pki"
    pki.mkdir(0o700)
    (pki / "ca.crt").write_bytes(authority.certificate.read_bytes())
    names = [x509.DNSName("kubernetes"), x509.DNSName("kubernetes.default.svc")]
    for prefix, subject, further in (
        ("yurthub", x509.Name([_USER, *_GROUPS]), []),
        ("yurthub-server", x509.Name([_USER, _GROUPS[1]]), names),
    ):
        pair = authority.issue(prefix, subject, further)
        dated = pki / f"{prefix}-2026-01-01-00-00-00.pem"
        dated.touch(0o600)
        dated.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
        (pki / f"{prefix}-current.pem").symlink_to(dated.name)
