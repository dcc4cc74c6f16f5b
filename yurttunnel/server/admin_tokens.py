"""``/v1/tokens`` of a server without a cluster: the join tokens that are good."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from yurttunnel.ops import flags
from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.debug.pages import Answer, BadParameter, Page, Parameters, as_json, text
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import (
    DEFAULT_TOKEN_LIFETIME,
    MAX_TOKENS,
    IssuedToken,
    JoinToken,
    TokenRefused,
    TokenStore,
)

LONGEST_LIFETIME = 365 * 86400.0
"""Seconds for which a token may be good."""


class TokenPages:
    """Lists tokens without their secrets, makes one, and ends one.

    ``command(token)`` gives what to run on a node. The token in ``file`` is one of them.
    """

    _log = Logger()

    def __init__(
        self,
        tokens: TokenStore,
        file: JoinTokenFile,
        revocations: Revocations,
        command: Callable[[JoinToken], str],
    ) -> None:
        self._tokens = tokens
        self._file = file
        self._revocations = revocations
        self._command = command

    def pages(self) -> dict[str, Page]:
        """Return the pages by their paths."""
        return {
            "tokens": Page(self._list, self._create, ("lifetime",)),
            "tokens/revoke": Page(self._list, self._revoke, ("id",)),
        }

    def _list(self, parameters: Parameters) -> Answer:
        try:
            in_file = self._file.read()
        except StateError as error:
            return text(f"{error}\n", 500)
        held = None if in_file is None else in_file.token_id
        return as_json(
            {"tokens": [_entry(each, each.token_id == held) for each in self._tokens.good()]}
        )

    def _create(self, parameters: Parameters) -> Answer:
        lifetime = _lifetime(parameters)
        if len(self._tokens.good()) >= MAX_TOKENS:
            return text(f"{MAX_TOKENS} join tokens are good already: revoke one first\n", 409)
        try:
            token = self._tokens.issue(lifetime, after=self._revocations.last_revocation())
        except StateError as error:
            return text(f"the join token is not made: {error}\n", 500)
        self._log.info(
            "join token {token} is made, by command, and good for {seconds:.0f} s",
            token=token.token_id,
            seconds=lifetime,
        )
        issued = self._tokens.check(token.token_id, token.secret)
        return as_json(
            {**_entry(issued, False), "token": str(token), "command": self._command(token)}
        )

    def _revoke(self, parameters: Parameters) -> Answer:
        token_id = parameters.get("id", "")
        if not token_id:
            raise BadParameter("id is wanted: that of a join token")
        try:
            self._tokens.revoke(token_id)
            self._file.refresh()
        except TokenRefused as error:
            return text(f"{error}\n", 409)
        except StateError as error:
            return text(f"the join token is not revoked: {error}\n", 500)
        self._log.info("join token {token} is revoked, by command", token=token_id)
        return as_json({"id": token_id})


def _entry(token: IssuedToken, is_in_file: bool) -> dict[str, object]:
    return {
        "id": token.token_id,
        "created": timestamp(token.created.timestamp()),
        "expires": timestamp(token.expires.timestamp()),
        "in_file": is_in_file,
    }


def _lifetime(parameters: Parameters) -> float:
    given = parameters.get("lifetime")
    if given is None:
        return DEFAULT_TOKEN_LIFETIME
    try:
        seconds = flags.duration(given)
    except ValueError as error:
        raise BadParameter(f"lifetime: {error}") from None
    if not 1 <= seconds <= LONGEST_LIFETIME:
        raise BadParameter("lifetime: give one second to 365 days, as 24h")
    return seconds
