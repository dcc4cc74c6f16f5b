"""Validation of CertificateSigningRequests (pkg/apis/certificates/validation)."""

from __future__ import annotations

import base64
import binascii

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from yurtlab.api import names
from yurtlab.api.errors import (
    Cause,
    duplicate_value,
    invalid_value,
    not_supported,
    required,
)
from yurtlab.api.store import Object

SHORTEST = 600
"""The minimum duration that a request may have, in seconds."""

_USAGES = frozenset(
    {
        *("signing", "digital signature", "content commitment", "key encipherment"),
        *("key agreement", "data encipherment", "cert sign", "crl sign", "encipher only"),
        *("decipher only", "any", "server auth", "client auth", "code signing"),
        *("email protection", "s/mime", "ipsec end system", "ipsec tunnel", "ipsec user"),
        *("timestamping", "ocsp signing", "microsoft sgc", "netscape sgc"),
    }
)
_LEGACY_SIGNER = "kubernetes.io/legacy-unknown"
_TRUE_ONLY = frozenset({"Approved", "Denied", "Failed"})
_OPPOSITE = {"Approved": "Denied", "Denied": "Approved"}
_LONGEST_SIGNER = 571


class BadRequestContent(Exception):
    """The bytes of a request are invalid; the message is one line."""


def parse_request(encoded: str) -> x509.CertificateSigningRequest:
    """Read ``spec.request``, PKCS #10 in PEM in base64; raises :class:`BadRequestContent`."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestContent("illegal base64 data") from None
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in data:
        raise BadRequestContent("PEM block type must be CERTIFICATE REQUEST")
    try:
        request = x509.load_pem_x509_csr(data)
        if not request.is_signature_valid:
            raise BadRequestContent("the signature is not of the key in the request")
        # Invalid names would cause an error later.
        request.subject.rfc4514_string()
        return request
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise BadRequestContent(f"it is not a PKCS #10 request: {error}") from None


def organizations(request: x509.CertificateSigningRequest) -> list[str]:
    """Return the organizations in a request: the groups of a user."""
    found = request.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return [str(one.value) for one in found]


def common_names(request: x509.CertificateSigningRequest) -> list[str]:
    """Return the common names in a request: the name of a user."""
    found = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return [str(one.value) for one in found]


def validate_request(spec: Object) -> list[Cause]:
    """Check the specification of a request."""
    causes: list[Cause] = []
    encoded = spec.get("request", "")
    try:
        parse_request(encoded)
    except BadRequestContent as error:
        causes.append(invalid_value("spec.request", _shown_bytes(encoded), str(error)))
    causes += _validate_usages(spec.get("usages", []))
    causes += _validate_signer(spec.get("signerName", ""))
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < SHORTEST:
        text = "may not specify a duration less than 600 seconds (10 minutes)"
        causes.append(invalid_value("spec.expirationSeconds", seconds, text))
    return causes


def validate_conditions(conditions: list[Object]) -> list[Cause]:
    """Check the decisions about a request."""
    causes: list[Cause] = []
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        path = f"status.conditions[{index}]"
        kind, status = condition.get("type", ""), condition.get("status", "")
        if not kind:
            causes.append(required(f"{path}.type"))
        supported = ("True",) if kind in _TRUE_ONLY else ("False", "True", "Unknown")
        if not status:
            causes.append(required(f"{path}.status"))
        elif status not in supported:
            causes.append(not_supported(f"{path}.status", status, supported))
        if _OPPOSITE.get(kind) in seen:
            text = "Approved and Denied conditions are mutually exclusive"
            causes.append(invalid_value(f"{path}.type", kind, text))
        if kind in seen:
            causes.append(duplicate_value(f"{path}.type", kind))
        seen.add(kind)
    return causes


def validate_certificate(encoded: str) -> list[Cause]:
    """Check the result of a signer, which must be only certificates in PEM, in base64."""
    problem = _certificate_problem(encoded) if encoded else None
    if problem is None:
        return []
    return [invalid_value("status.certificate", "<certificate data>", problem)]


def _certificate_problem(encoded: str) -> str | None:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "illegal base64 data"
    for line in data.splitlines():
        if line.startswith(b"-----BEGIN ") and line.strip() != b"-----BEGIN CERTIFICATE-----":
            found = line.strip()[11:-5].decode("ascii", "replace")
            return f'only CERTIFICATE PEM blocks are allowed, found "{found}"'
    if b"-----BEGIN CERTIFICATE-----" not in data:
        return "must contain at least one CERTIFICATE PEM block"
    try:
        x509.load_pem_x509_certificates(data)
    except ValueError as error:
        return f"x509: malformed certificate: {error}"
    return None


def _validate_usages(usages: list[str]) -> list[Cause]:
    if not usages:
        return [required("spec.usages")]
    causes = []
    for index, usage in enumerate(usages):
        path = f"spec.usages[{index}]"
        if usage not in _USAGES:
            causes.append(not_supported(path, usage, sorted(_USAGES)))
        if usage in usages[:index]:
            causes.append(duplicate_value(path, usage))
    return causes


def _validate_signer(name: str) -> list[Cause]:
    """Check a signer's name, DOMAIN/PATH (ValidateSignerName of pkg/apis/core/validation)."""
    field = "spec.signerName"
    if not name:
        return [required(field)]
    if name == _LEGACY_SIGNER:
        text = "the legacy signerName is not allowed via this API version"
        return [invalid_value(field, name, text)]
    parts = name.split("/")
    if len(parts) != 2:
        text = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        return [invalid_value(field, name, text)]
    domain, path = parts
    causes: list[Cause] = []
    if len(name) > _LONGEST_SIGNER:
        message = f"Too long: may not be more than {_LONGEST_SIGNER} bytes"
        causes.append(Cause("FieldValueTooLong", message, field))
    causes += _check_segment(field, domain)
    if len(domain.split(".")) < 2:
        text = "should be a domain with at least two segments separated by dots"
        causes.append(invalid_value(field, domain, text))
    return causes + _check_segment(field, path)


def _check_segment(field: str, text: str) -> list[Cause]:
    return [
        invalid_value(field, text, f'validating label "{text}": {problem}')
        for problem in names.dns_subdomain(text)
    ]


def _shown_bytes(encoded: str) -> str:
    """Shorten bytes for a message."""
    return encoded if len(encoded) <= 40 else f"{encoded[:40]}..."
