"""Descriptions of TLS errors in plain sentences.

OpenSSL describes a certificate error by a number, and an alert from the peer by a text such as
``tlsv13 alert certificate required``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cryptography import x509
from OpenSSL import SSL
from twisted.python.failure import Failure

from yurttunnel.wire.codes import Code, Refused

_LIBRARY = "yurttunnel"
"""The library name of our own TLS errors, in the place of OpenSSL's."""

_codes = SSL.X509VerificationCodes

FOREIGN = frozenset(
    {
        _codes.ERR_UNABLE_TO_GET_ISSUER_CERT,
        _codes.ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
        _codes.ERR_DEPTH_ZERO_SELF_SIGNED_CERT,
        _codes.ERR_SELF_SIGNED_CERT_IN_CHAIN,
        _codes.ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE,
        _codes.ERR_CERT_SIGNATURE_FAILURE,
    }
)
"""OpenSSL's errors for a certificate that no trusted authority has signed. OpenSSL looks for the
issuer first, so these precede all other errors about such a certificate."""

_ENROLL_AGAIN = (
    "remove node.pem from the agent's --state-dir and start it with a new join token, or in a"
    " cluster empty its --cert-dir and start it again"
)
_COMPARE_CLOCKS = "compare the two machines' clocks"

_ALERT = re.compile(r"alert (.+)")
_CONNECTION_CLOSED = "the connection was closed during the TLS handshake"
_NOT_TLS = "it does not speak TLS: check the port"

# The reasons of OpenSSL's own errors, on either side.
_ERRORS = {
    "unexpected eof while reading": _CONNECTION_CLOSED,
    "http request": _NOT_TLS,
    "wrong version number": _NOT_TLS,
    "unsupported protocol": "it does not support TLS 1.2 or newer",
    "no shared cipher": "it has no cipher suite in common with this end",
    "no application protocol": "it does not speak yurttunnel/1 (ALPN): check the port",
}

_SERVER_ERRORS = {
    "peer did not return a certificate": "it presented no certificate",
    "certificate verify failed": "its certificate is rejected",
}

# Alerts from an agent to the server: each means that the server's certificate is rejected.
_AGENT_ALERTS = dict.fromkeys(
    ("unknown ca", "bad certificate", "certificate unknown", "certificate expired"),
    "it does not trust this server's certificate; its log says why",
)

# Alerts from the server to an agent.
_SERVER_ALERTS = {
    "certificate required": "the server has received no certificate from this node:"
    f" {_ENROLL_AGAIN}",
    "certificate expired": (
        f"the server says that this node's certificate has expired: {_COMPARE_CLOCKS}; if it has,"
        f" {_ENROLL_AGAIN}"
    ),
    # OpenSSL's alert for a certificate that is not valid yet, and for a broken signature.
    "bad certificate": (
        "the server rejects this node's certificate; it may not be valid yet by the server's"
        f" clock: {_COMPARE_CLOCKS}"
    ),
    "unknown ca": (
        f"the server does not know the authority of this node's certificate: {_ENROLL_AGAIN}"
    ),
    "unsupported certificate": (
        "the server says that this node's certificate is not an agent's certificate:"
        f" {_ENROLL_AGAIN}"
    ),
    "certificate unknown": f"the server rejects this node's certificate: {_ENROLL_AGAIN}",
    "internal error": "the server does not speak yurttunnel/1 there: check address and port",
    "no application protocol": (
        "the server does not speak yurttunnel/1 there: check address and port"
    ),
    "protocol version": "the server does not support TLS 1.2 or newer",
}

_REJECTED_BY_KUBELET = (
    "the kubelet rejects the certificate tunnel-proxy-client of this server: configure the ca.crt"
    " of the server's --state-dir, or the cluster's authority, as its client CA"
)

# The alerts by which a server rejects a client's certificate, whatever the reason.
_REJECTION_ALERTS = (
    "certificate required",
    "unknown ca",
    "bad certificate",
    "certificate unknown",
    "certificate expired",
    "unsupported certificate",
)

# Alerts from a kubelet to the server: each means that the server's certificate is rejected.
_KUBELET_ALERTS = dict.fromkeys(_REJECTION_ALERTS, _REJECTED_BY_KUBELET)

_REJECTED_BY_API = (
    "the API server rejects this node's certificate: provide a new join token by POST /v1/token of"
    " the meta port, or see the hub's log for why it was not renewed"
)

# Alerts from an API server to a node. API servers mostly accept every certificate and answer
# requests with 401; a load balancer before them may be stricter.
_API_ALERTS = {
    **dict.fromkeys(_REJECTION_ALERTS, _REJECTED_BY_API),
    "no application protocol": "it does not speak HTTP/1.1 there: check address and port",
    "protocol version": "it does not support TLS 1.2 or newer",
}

_ADVICE_BY_CODE = {
    Code.REVOKED: f"to accept it again, {_ENROLL_AGAIN}",
    Code.NOT_AUTHORIZED: f"remove that from --agent-identifiers, or {_ENROLL_AGAIN}",
}


def rejection_error(problem: str) -> SSL.Error:
    """Return the exception that a callback of a TLS context raises to reject the peer.

    pyOpenSSL raises it from the handshake, after the alert that OpenSSL chose. ``problem`` is a
    sentence about the peer: "its certificate ...".
    """
    return SSL.Error([(_LIBRARY, "", problem)])


def certificate_problem(
    error: int, authority: str, certificate: x509.Certificate | None = None
) -> str:
    """Complete "the certificate ..." for a verification error of OpenSSL.

    ``authority`` is the expected issuer: "the authority that ...". With ``certificate``, the text
    includes its validity period, to compare with the time of the log line.
    """
    match error:
        case _codes.ERR_CERT_HAS_EXPIRED:
            return f"has expired{_validity_period(certificate)}"
        case _codes.ERR_CERT_NOT_YET_VALID:
            return f"is not valid yet: {_COMPARE_CLOCKS}{_validity_period(certificate)}"
        case _ if error in FOREIGN:
            return f"is not from {authority}"
        case _codes.ERR_INVALID_PURPOSE:
            return "is not valid for this use"
        case 66 | 67 | 68:
            # EE_KEY_TOO_SMALL, CA_KEY_TOO_SMALL and CA_MD_TOO_WEAK of OpenSSL's x509_vfy.h, which
            # pyOpenSSL does not define.
            return "has too weak a key or signature: use RSA from 2048 bits or ECDSA, with SHA-256"
        case _:
            return f"is rejected (OpenSSL verification error {error})"


def _validity_period(certificate: x509.Certificate | None) -> str:
    if certificate is None:
        return ""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f" (it is valid from {begin:%F %T} to {end:%F %T} UTC)"


def problem_with_peer(reason: Failure) -> str:
    """Return, for the server's operator, why an accepted connection failed."""
    return _explain(reason, _SERVER_ERRORS, _AGENT_ALERTS)


def problem_with_server(reason: Failure) -> str:
    """Return, for the agent's operator, why a connection to a server failed, and the fix."""
    error = reason.value
    if isinstance(error, Refused) and error.code in _ADVICE_BY_CODE:
        return f"{error}: {_ADVICE_BY_CODE[error.code]}"
    return _explain(reason, {}, _SERVER_ALERTS)


def problem_with_kubelet(reason: Failure) -> str:
    """Return, for the caller of a kubelet, why TLS with it failed."""
    return _explain(reason, {}, _KUBELET_ALERTS)


def problem_with_api(reason: Failure) -> str:
    """Return, for the node's operator, why TLS with an API server failed."""
    return _explain(reason, {}, _API_ALERTS)


def _explain(reason: Failure, errors: Mapping[str, str], alerts: Mapping[str, str]) -> str:
    if not isinstance(reason.value, SSL.Error):
        return reason.getErrorMessage()
    entries = reason.value.args[0] if reason.value.args else []
    texts = [_sentence(library, text, errors, alerts) for library, _, text in entries]
    return ", ".join(texts) or _CONNECTION_CLOSED


def _sentence(library: str, text: str, errors: Mapping[str, str], alerts: Mapping[str, str]) -> str:
    if library == _LIBRARY:
        return text
    alert = _ALERT.search(text)
    if alert is not None:
        return alerts.get(alert[1], f"it has sent the TLS alert {alert[1]!r}")
    return errors.get(text) or _ERRORS.get(text, text)
