"""The messages between agent and server with ALPN ``yurttunnel-enroll/1``.

A connection carries one request and one response. Each is a JSON object in UTF-8 of at most 64 KiB,
after its length in four bytes (network order). Then the connection ends.

The request has ``node``, ``identifiers`` (see :mod:`yurttunnel.pki.identity`) and ``csr``, a PKCS
#10 request in PEM form. An enrolment also has ``token``, an object with the ``id`` and ``secret``
of a join token. Without it, the request is a renewal of the connection's client certificate.

An agent whose clock makes the server's certificate invalid requests only the ``time``: its request
is ``{"question": "time"}``, and the response has ``time``, in seconds since the epoch.
Servers that do not support it reject it as a bad request.

The response has ``certificate`` and ``authority``, in PEM form, or ``error``, an object with a
``code`` (:class:`Refusal`) and a ``text`` for people.
"""

from __future__ import annotations

import datetime
import enum
import json
from typing import Any, NamedTuple

MAX_MESSAGE_LENGTH = 65536
"""Bytes."""


TIME_REQUEST = json.dumps({"question": "time"}).encode()
"""The request of an agent that must not send its token yet."""


class Refusal(enum.StrEnum):
    """Why the server did not sign."""

    BAD_REQUEST = "bad-request"
    """The request cannot be parsed, or its key is not acceptable."""
    BAD_TOKEN = "bad-token"
    """The join token is unknown, or its secret is wrong."""
    TOKEN_EXPIRED = "token-expired"
    """The join token has expired, or is older than the node's revocation."""
    ALREADY_ENROLLED = "already-enrolled"
    """The node's name, or another identifier, belongs to another node."""
    REVOKED = "revoked"
    """The certificate to renew has been revoked."""
    NOT_AUTHORIZED = "not-authorized"
    """The certificate does not permit the renewal, or none was presented."""
    RATE_LIMITED = "rate-limited"
    """Too many wrong tokens from this address; a later retry may succeed."""
    UNAVAILABLE = "unavailable"
    """The server cannot store the enrolment, or its authority has expired by its clock; a retry
    succeeds once that is fixed."""
    TIMEOUT = "timeout"
    """The request did not arrive in time."""
    INTERNAL = "internal"
    """The server failed; its log has the error."""

    @property
    def is_temporary(self) -> bool:
        """Whether a retry of the same request may succeed later."""
        return self in (
            Refusal.RATE_LIMITED,
            Refusal.UNAVAILABLE,
            Refusal.TIMEOUT,
            Refusal.INTERNAL,
        )

    @classmethod
    def from_wire(cls, value: object) -> Refusal:
        """Return the code for ``value``; INTERNAL if this version does not know it."""
        try:
            return cls(str(value))
        except ValueError:
            return cls.INTERNAL


class EnrolmentRefused(Exception):
    """The server rejected the request: ``code`` for programs, ``text`` for people."""

    def __init__(self, code: Refusal, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        """Return the sentence and the code."""
        return f"{self.text} ({self.code})"


class BadMessage(Exception):
    """A message that violates the format of this module."""


class EnrolmentRequest(NamedTuple):
    """The agent's request; without ``token_id`` it is a renewal."""

    node: str
    identifiers: str
    csr: str
    token_id: str = ""
    token_secret: str = ""

    def encode(self) -> bytes:
        """Encode the request as JSON."""
        message: dict[str, Any] = {
            "node": self.node,
            "identifiers": self.identifiers,
            "csr": self.csr,
        }
        if self.token_id:
            message["token"] = {"id": self.token_id, "secret": self.token_secret}
        return json.dumps(message).encode()

    @classmethod
    def decode(cls, content: bytes) -> EnrolmentRequest:
        """Decode a request; raises :class:`BadMessage`."""
        message = _object(content)
        token = message.get("token")
        if token is not None and not isinstance(token, dict):
            raise BadMessage("token is not an object")
        return cls(
            node=_text(message, "node"),
            identifiers=_text(message, "identifiers"),
            csr=_text(message, "csr"),
            token_id=_text(token, "id") if token is not None else "",
            token_secret=_text(token, "secret") if token is not None else "",
        )


class EnrolmentResponse(NamedTuple):
    """The server's response after signing; both fields in PEM form."""

    certificate: str
    authority: str

    def encode(self) -> bytes:
        """Encode the response as JSON."""
        return json.dumps({"certificate": self.certificate, "authority": self.authority}).encode()


def encode_refusal(refused: EnrolmentRefused) -> bytes:
    """Encode a response that rejects the request."""
    error = {"code": str(refused.code), "text": refused.text}
    return json.dumps({"error": error}).encode()


def decode_response(content: bytes) -> EnrolmentResponse:
    """Decode a response; raises :class:`EnrolmentRefused` or :class:`BadMessage`."""
    message = _object(content)
    error = message.get("error")
    if isinstance(error, dict):
        raise EnrolmentRefused(Refusal.from_wire(error.get("code")), _text(error, "text"))
    return EnrolmentResponse(_text(message, "certificate"), _text(message, "authority"))


def is_time_request(content: bytes) -> bool:
    """Return whether a request is for the server's time; raises :class:`BadMessage`."""
    return _object(content).get("question") == "time"


def encode_time(now: datetime.datetime) -> bytes:
    """Encode the response to :data:`TIME_REQUEST`."""
    return json.dumps({"time": now.timestamp()}).encode()


def decode_time(content: bytes) -> datetime.datetime | None:
    """Decode the server's time, in UTC, from a response; ``None`` if it has none."""
    try:
        time = _object(content).get("time")
        if isinstance(time, int | float):
            return datetime.datetime.fromtimestamp(time, datetime.UTC)
    except (BadMessage, ValueError, OverflowError, OSError):
        # Not JSON, not a number, or not a valid time.
        return None
    return None


def _object(content: bytes) -> dict[str, Any]:
    try:
        message = json.loads(content)
    # RecursionError: thousands of nested brackets.
    except (ValueError, RecursionError):
        raise BadMessage("the message is not JSON") from None
    if not isinstance(message, dict):
        raise BadMessage("the message is not a JSON object")
    return message


def _text(message: dict[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str) or (not value.isprintable() and key not in _MULTILINE):
        raise BadMessage(f"{key} is missing, or not plain text")
    return value


_MULTILINE = ("csr", "certificate", "authority")
