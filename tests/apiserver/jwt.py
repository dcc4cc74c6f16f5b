"""JSON Web Tokens (RFC 7519), signed with ES256 or RS256 (RFC 7518), as far as needed here."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from yurttunnel.pki.credentials import PrivateKey

MAX_TOKEN_CHARACTERS = 16 * 1024
"""The maximum length of a token."""

_COORDINATE_BYTES = 32

Claims = dict[str, Any]


class BadToken(Exception):
    """A text that is not a valid token of this issuer."""


class TokenSigner:
    """Signs claims with ``key``, P-256 or RSA, and reads what it has signed."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key
        self._algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        # As keyIDFromPublicKey of Kubernetes (pkg/serviceaccount/jwt.go) has it.
        self._key_id = _encode(hashlib.sha256(public).digest())

    def sign(self, claims: Claims) -> str:
        """Return a token with ``claims``."""
        header = {"alg": self._algorithm, "kid": self._key_id}
        message = f"{_encode(_json(header))}.{_encode(_json(claims))}"
        return f"{message}.{_encode(self._signature(message.encode('ascii')))}"

    def read(self, token: str) -> Claims:
        """Return the claims of a token; raises :class:`BadToken`.

        The caller checks the times in them.
        """
        parts = token.split(".")
        if len(token) > MAX_TOKEN_CHARACTERS or len(parts) != 3:
            raise BadToken("it is no JSON Web Token")
        header, claims = _object(parts[0]), _object(parts[1])
        if header.get("alg") != self._algorithm:
            raise BadToken(f"it is not signed with {self._algorithm}")
        try:
            message = f"{parts[0]}.{parts[1]}".encode("ascii")
            self._verify(_decode(parts[2]), message)
        except (InvalidSignature, ValueError):
            raise BadToken("its signature is not that of the issuer") from None
        return claims

    def _signature(self, message: bytes) -> bytes:
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._key.sign(message, padding.PKCS1v15(), hashes.SHA256())
        r, s = decode_dss_signature(self._key.sign(message, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(_COORDINATE_BYTES, "big") + s.to_bytes(_COORDINATE_BYTES, "big")

    def _verify(self, signature: bytes, message: bytes) -> None:
        public = self._key.public_key()
        if isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
            return
        if len(signature) != 2 * _COORDINATE_BYTES:
            raise InvalidSignature
        r, s = signature[:_COORDINATE_BYTES], signature[_COORDINATE_BYTES:]
        encoded = encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
        public.verify(encoded, message, ec.ECDSA(hashes.SHA256()))


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    padded = text + "=" * (-len(text) % 4)
    return base64.b64decode(padded.encode("ascii"), b"-_", validate=True)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(_decode(text))
    except (ValueError, RecursionError):
        raise BadToken("it is no JSON Web Token") from None
    if not isinstance(value, dict):
        raise BadToken("it is no JSON Web Token")
    return value
