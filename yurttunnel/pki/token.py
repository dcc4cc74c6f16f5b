"""Join tokens: one string that enrolls agents and pins the authority to trust.

The form is ``id.secret.sha256:pin``, after kubeadm's tokens: a public id (16 hex digits), a secret
(32 hex digits, 128 bits) and the SHA-256 of the SubjectPublicKeyInfo of the authority's
certificate. The server stores only the hash of the secret.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass, replace
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.directory import StateDirectory, StateError

JOIN_TOKEN_FILE = "join-token"
TOKENS_FILE = "tokens.json"
DEFAULT_TOKEN_LIFETIME = 86400.0
"""Seconds."""

_TOKEN = re.compile("([0-9a-f]{16})\\.([0-9a-f]{32})\\.sha256:([0-9a-f]{64})")
MAX_TOKENS = 64
"""The maximum number of valid tokens; each replacement of the join token adds one."""
_MAX_EXPIRED = 64
"""The maximum number of expired tokens that are remembered, to report them as expired."""
_JUST_AFTER = datetime.timedelta(microseconds=1)


class BadToken(ValueError):
    """A join token that is missing or invalid; the message never quotes it."""


class TokenRefused(Exception):
    """A token that does not enroll nodes, or not any more."""

    def __init__(self, text: str, expired: bool = False) -> None:
        super().__init__(text)
        self.expired = expired


class JoinToken(NamedTuple):
    """A join token as its holder has it."""

    token_id: str
    secret: str
    pin: str

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Parse the one-string form; raises :class:`BadToken`."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise BadToken("the join token is not of the form id.secret.sha256:pin: copy it whole")
        return cls(*match.groups())

    def __str__(self) -> str:
        """Return the one-string form."""
        return f"{self.token_id}.{self.secret}.sha256:{self.pin}"

    def __repr__(self) -> str:
        """Identify the token without its secret, for logs and tracebacks."""
        return f"<JoinToken {self.token_id}>"


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """The server's record of a token; times are in UTC.

    ``created`` is not before any revocation that was known then, whatever the clock said.
    ``is_expired`` is set once the token was found to be expired: setting the clock back does not
    make it valid again.
    """

    token_id: str
    secret_hash: str
    created: datetime.datetime
    expires: datetime.datetime
    is_expired: bool = False


class TokenStore:
    """The tokens that the server has issued, in ``tokens.json``.

    Raises :class:`StateError` if the file cannot be read or written.
    """

    def __init__(self, clock: IReactorTime, directory: StateDirectory, pin: str) -> None:
        self._clock = clock
        self._directory = directory
        self._pin = pin
        self._tokens = {token.token_id: token for token in _load(directory)}

    def issue(
        self, lifetime: float = DEFAULT_TOKEN_LIFETIME, after: datetime.datetime | None = None
    ) -> JoinToken:
        """Issue a token that is valid for ``lifetime`` seconds.

        It counts as newer than ``after``, a revocation, even if the clock has been set back. The
        oldest expired tokens are forgotten, and if too many are valid, those that expire first.
        """
        now = utc_now(self._clock)
        token = JoinToken(secrets.token_hex(8), secrets.token_hex(16), self._pin)
        issued = IssuedToken(
            token.token_id,
            _hash(token.secret),
            created=now if after is None else max(now, after + _JUST_AFTER),
            expires=now + datetime.timedelta(seconds=lifetime),
        )
        known = [
            replace(t, is_expired=t.is_expired or now >= t.expires) for t in self._tokens.values()
        ]
        expired = [t for t in known if t.is_expired][-_MAX_EXPIRED:]
        valid = [t for t in known if not t.is_expired]
        # Each revocation issues a token, which must not evict an operator's longer-lived one.
        too_many = max(0, len(valid) - (MAX_TOKENS - 1))
        evicted = sorted(valid, key=lambda t: t.expires)[:too_many]
        self._save([*expired, *(t for t in valid if t not in evicted), issued])
        return token

    def check(self, token_id: str, secret: str) -> IssuedToken:
        """Return the token if it is known, correct and valid; raises :class:`TokenRefused`."""
        issued = self._tokens.get(token_id)
        # Constant time: unknown ids take as long as wrong secrets.
        expected = issued.secret_hash if issued is not None else _hash("")
        right = hmac.compare_digest(_hash(secret), expected)
        if issued is None or not right:
            raise TokenRefused("the join token is unknown: use the server's current one")
        if issued.is_expired or utc_now(self._clock) >= issued.expires:
            raise TokenRefused(
                f"the join token expired at {issued.expires:%F %T} UTC:"
                " use the server's current one",
                expired=True,
            )
        return issued

    def find(self, token: JoinToken) -> IssuedToken | None:
        """Return the record of ``token``, if it is valid now and pins this authority."""
        try:
            issued = self.check(token.token_id, token.secret)
        except TokenRefused:
            return None
        return issued if token.pin == self._pin else None

    def valid(self) -> list[IssuedToken]:
        """Return the tokens that are valid now, the oldest first."""
        now = utc_now(self._clock)
        return [
            each for each in self._tokens.values() if not each.is_expired and now < each.expires
        ]

    def revoke(self, token_id: str) -> None:
        """Revoke a token; raises :class:`TokenRefused` for an unknown one.

        Nodes that have enrolled with it stay enrolled.
        """
        if token_id not in self._tokens:
            raise TokenRefused("there is no join token with this id")
        self._save([each for each in self._tokens.values() if each.token_id != token_id])

    def _save(self, tokens: list[IssuedToken]) -> None:
        entries = [
            {
                "id": token.token_id,
                "secret_sha256": token.secret_hash,
                "created": token.created.isoformat(),
                "expires": token.expires.isoformat(),
                "ended": token.is_expired,
            }
            for token in tokens
        ]
        self._directory.write(TOKENS_FILE, json.dumps({"tokens": entries}, indent=1).encode())
        self._tokens = {token.token_id: token for token in tokens}


def newest_token(directory: StateDirectory) -> datetime.datetime | None:
    """Return when the newest token was created; ``None`` if there has been none.

    For commands beside a running server. Raises :class:`StateError`.
    """
    return max((token.created for token in _load(directory)), default=None)


def _load(directory: StateDirectory) -> list[IssuedToken]:
    content = directory.read(TOKENS_FILE, secret=True)
    if content is None:
        return []
    try:
        return [
            IssuedToken(
                str(entry["id"]),
                str(entry["secret_sha256"]),
                datetime.datetime.fromisoformat(entry["created"]),
                datetime.datetime.fromisoformat(entry["expires"]),
                bool(entry.get("ended", False)),
            )
            for entry in json.loads(content)["tokens"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        path = directory.path / TOKENS_FILE
        raise StateError(
            f"{path} is not a list of join tokens in JSON: remove it, which revokes all join tokens"
        ) from error


def _hash(secret: str) -> str:
    # A plain hash suffices for a random secret of 128 bits, which cannot be guessed.
    return hashlib.sha256(secret.encode()).hexdigest()
