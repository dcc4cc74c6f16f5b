"""Fuzz targets of trust: enrolment requests, and names in certificates."""

from __future__ import annotations

import base64
import datetime
import json

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.certificates import common_name
from tests.fuzz.cases import PLAN, Target
from yurttunnel.pki.authority import BadRequest, key_of_request
from yurttunnel.pki.enrolment_messages import BadMessage, EnrolmentRequest
from yurttunnel.pki.identity import (
    MAX_IDENTIFIERS,
    BadIdentifiers,
    Identifiers,
    format_identifiers,
    identity_from_certificate,
    parse_identifiers,
    subject_alternative_names,
)
from yurttunnel.pki.names import NODE_ORGANIZATION, BadIdentity, check_node_name


def check_request(case: bytes) -> bool:
    """An enrolment request is equal when it is encoded and decoded again, or it is rejected."""
    try:
        request = EnrolmentRequest.decode(case[PLAN:])
    except BadMessage as error:
        _one_sentence(error)
        return False
    # Texts that reach the log and files have no control characters.
    for text in (request.node, request.identifiers, request.token_id, request.token_secret):
        assert text.isprintable(), "a text is not printable"
    if request.token_id:
        assert EnrolmentRequest.decode(request.encode()) == request, (
            "it changes when it is encoded again"
        )
    return True


def check_identifiers(case: bytes) -> bool:
    """Identifiers are equal when they are formatted and parsed again, or they are rejected."""
    text = case[PLAN:].decode("utf-8", "replace")
    try:
        found = parse_identifiers(text)
    except BadIdentifiers as error:
        _one_sentence(error)
        return False
    _plain(found)
    assert (
        found == Identifiers(frozenset()) or parse_identifiers(format_identifiers(found)) == found
    )
    return True


def check_certificate_request(case: bytes) -> bool:
    """A certificate request has a good key, or is rejected with a reason."""
    body = base64.encodebytes(case[PLAN:]).decode()
    pem = f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"
    try:
        key_of_request(pem)
    except BadRequest as error:
        _one_sentence(error)
        return False
    return True


def check_certificate(case: bytes) -> bool:
    """A certificate names a node by the rules, or is rejected."""
    try:
        certificate = x509.load_der_x509_certificate(case[PLAN:])
    except (ValueError, x509.InvalidVersion):
        # TLS would reject it earlier.
        return False
    try:
        identity = identity_from_certificate(certificate)
    except BadIdentity as error:
        _one_sentence(error)
        return False
    assert check_node_name(identity.node) in identity.identifiers.hosts, "it names no node"
    _plain(identity.identifiers)
    return True


def _plain(found: Identifiers) -> None:
    """Check that identifiers are within their bounds, and that no host is ambiguous."""
    assert len(found.hosts) + len(found.addresses) + len(found.networks) <= MAX_IDENTIFIERS
    for host in found.hosts:
        assert host.isascii() and not set(host) & set("&=,%/@?#\\ \r\n\0"), f"a host is {host!r}"


def _one_sentence(error: Exception) -> None:
    text = str(error)
    assert len(text) < 2000 and text.isprintable(), (
        f"the reason is too long or not printable: {text!r}"
    )


_KEY = ec.derive_private_key(7, ec.SECP256R1())
_BEGIN = datetime.datetime(2026, 1, 1)


def _names() -> list[x509.GeneralName]:
    identifiers = "host=edge-1&ipv4=192.0.2.1&ipv6=2001:db8::1&cidr=10.0.0.0/8"
    return subject_alternative_names("edge-1", parse_identifiers(identifiers), "ab")


def _certificate(common_name: str, *organizations: str) -> bytes:
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
        + [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    )
    builder = (
        x509.CertificateBuilder(subject, subject, _KEY.public_key(), 1)
        .not_valid_before(_BEGIN)
        .not_valid_after(_BEGIN + datetime.timedelta(days=30))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
        .add_extension(x509.SubjectAlternativeName(_names()), False)
    )
    # The signature is deterministic, so that the same seed makes the same cases.
    signed = builder.sign(_KEY, hashes.SHA256(), ecdsa_deterministic=True)
    return signed.public_bytes(Encoding.DER)


def _certificate_request() -> bytes:
    subject = common_name("edge-1")
    builder = x509.CertificateSigningRequestBuilder(subject)
    signed = builder.sign(_KEY, hashes.SHA256(), ecdsa_deterministic=True)
    return signed.public_bytes(Encoding.DER)


_TOKEN = {"id": "0123456789abcdef", "secret": "s" * 32}
_FIELDS = {"node": "edge-1", "identifiers": "host=edge-1&ipv4=192.0.2.1", "csr": "-----BEGIN\n"}

ENROLMENT = Target(
    "enrolment",
    check_request,
    [
        json.dumps({**_FIELDS, "token": _TOKEN}).encode(),
        json.dumps(_FIELDS).encode(),
        json.dumps({**_FIELDS, "token": _TOKEN}).encode()[:-1],
        json.dumps({**_FIELDS, "identifiers": "host=a\r\n2026 [-] forged"}).encode(),
        json.dumps({**_FIELDS, "token": {**_TOKEN, "id": "\x1b[2J"}}).encode(),
    ],
    [b"", b"}", b"[", b"[" * 3000, b"9" * 5000, b'"', b"\\ud800", b"\xff", b'{"token":', b"null"],
)
IDENTIFIERS = Target(
    "identifiers",
    check_identifiers,
    [b"host=edge-1", b"ipv4=192.0.2.1", b"", b"default-route=true"],
    [
        b"&host=a.b",
        b"&ipv6=2001:db8::1",
        b"&ipv6=fe80::1%25eth0",
        b"&cidr=10.0.0.0/8",
        b"&cidr=::/0",
        b",host=b",
        b"&uid=1",
        b"&host=%0a%26ipv4",
        b"&host=" + b"a" * 300,
        b"&ipv4=010.1.1.1",
    ],
)
CERTIFICATE_REQUEST = Target(
    "certificate-request", check_certificate_request, [_certificate_request()], [b"", b"\x00"]
)
CERTIFICATE = Target(
    "certificate",
    check_certificate,
    [
        _certificate("edge-1", NODE_ORGANIZATION),
        _certificate("edge-2", NODE_ORGANIZATION),
        _certificate("edge-1", NODE_ORGANIZATION, "system:masters"),
    ],
    [b""],
)
