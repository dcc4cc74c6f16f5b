"""What agent and server say to each other on ALPN ``yurttunnel-enroll/1``.

One request and one response, each a JSON object in UTF-8 after its length in four bytes
(network order), at most 64 KiB. Then the connection ends.

The request has ``node``, ``identifiers`` (see :mod:`yurttunnel.pki.identity`) and ``csr``, a
PKCS #10 request in PEM form. An enrolment also has ``token``, an object with the ``id`` and
``secret`` of a join token; without it the request is a renewal, and the connection's client
certificate says whose.

An agent by whose clock the server's certificate is not valid asks for the ``time`` alone: its
request is ``{"question": "time"}``, and the response has ``time``, in seconds since the epoch.
A server that does not know that refuses it as a bad request.

The response has ``certificate`` and ``authority``, in PEM form, or ``error``, an object with a
``code`` (:class:`Refusal`) and a ``text`` for people.
"""

from __future__ import annotations

import datetime
import enum
import json
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE_LENGTH = 65536
"""Bytes."""


TIME_QUESTION = json.dumps({"question": "time"}).encode()
"""What is asked by an agent that must not send its token yet."""


class Refusal(enum.StrEnum):
    """Why the server did not sign."""

    BAD_REQUEST = "bad-request"
    """The request cannot be understood, or its key is not acceptable."""
    BAD_TOKEN = "bad-token"
    """The join token is not known, or its secret is wrong."""
    TOKEN_EXPIRED = "token-expired"
    """The join token was good once, or is older than the node's revocation."""
    ALREADY_ENROLLED = "already-enrolled"
    """The node's name, or another identifier, belongs to somebody else."""
    REVOKED = "revoked"
    """The certificate that asks for its renewal has been revoked."""
    NOT_AUTHORIZED = "not-authorized"
    """The certificate does not allow what the renewal asks for, or there is none."""
    RATE_LIMITED = "rate-limited"
    """Too many wrong tokens came from this address; trying later may work."""
    UNAVAILABLE = "unavailable"
    """The server cannot keep who is enrolled, or its authority has ended by its clock; trying later
    works when that has been mended."""
    TIMEOUT = "timeout"
    """The request did not arrive in time."""
    INTERNAL = "internal"
    """The server failed; its log says how."""

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may be answered otherwise later."""
        return self in (
            Refusal.RATE_LIMITED,
            Refusal.UNAVAILABLE,
            Refusal.TIMEOUT,
            Refusal.INTERNAL,
        )

    @classmethod
    def from_wire(cls, value: object) -> Refusal:
        """The code for ``value``; INTERNAL when this version does not know it."""
        try:
            return cls(str(value))
        except ValueError:
            return cls.INTERNAL


class EnrolmentRefused(Exception):
    """The server's answer is no: ``code`` for programs, ``text`` for people."""

    def __init__(self, code: Refusal, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        """Return the sentence and the code."""
        return f"{self.text} ({self.code})"


class BadMessage(Exception):
    """A message that is not as this module says."""


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """What the agent sends; without ``token_id`` it is a renewal."""

    node: str
    identifiers: str
    csr: str
    token_id: str = ""
    token_secret: str = ""

    def encode(self) -> bytes:
        """Write it as JSON."""
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
        """Read it; raises :class:`BadMessage`."""
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


@dataclass(frozen=True, slots=True)
class EnrolmentResponse:
    """What the server sends when it has signed; both in PEM form."""

    certificate: str
    authority: str

    def encode(self) -> bytes:
        """Write it as JSON."""
        return json.dumps({"certificate": self.certificate, "authority": self.authority}).encode()


def encode_refusal(refused: EnrolmentRefused) -> bytes:
    """Write the response that says no."""
    error = {"code": str(refused.code), "text": refused.text}
    return json.dumps({"error": error}).encode()


def decode_response(content: bytes) -> EnrolmentResponse:
    """Read a response; raises :class:`EnrolmentRefused` or :class:`BadMessage`."""
    message = _object(content)
    error = message.get("error")
    if isinstance(error, dict):
        raise EnrolmentRefused(Refusal.from_wire(error.get("code")), _text(error, "text"))
    return EnrolmentResponse(_text(message, "certificate"), _text(message, "authority"))


def asks_for_time(content: bytes) -> bool:
    """Return whether a request is for the server's time; raises :class:`BadMessage`."""
    return _object(content).get("question") == "time"


def encode_time(now: datetime.datetime) -> bytes:
    """Write the response to :data:`TIME_QUESTION`."""
    return json.dumps({"time": now.timestamp()}).encode()


def decode_time(content: bytes) -> datetime.datetime | None:
    """Read the server's time, in UTC, from a response; ``None`` where it has none."""
    try:
        time = _object(content).get("time")
        if isinstance(time, int | float):
            return datetime.datetime.fromtimestamp(time, datetime.UTC)
    except (BadMessage, ValueError, OverflowError, OSError):
        # No JSON, not a number, or one that is no time.
        return None
    return None


def _object(content: bytes) -> dict[str, Any]:
    try:
        message = json.loads(content)
    # RecursionError: a few thousand brackets.
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
