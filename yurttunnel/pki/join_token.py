"""The service that keeps a valid join token in the server's state directory."""

from __future__ import annotations

import datetime

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.credentials import BACKDATE
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import (
    DEFAULT_TOKEN_LIFETIME,
    JOIN_TOKEN_FILE,
    BadToken,
    IssuedToken,
    JoinToken,
    TokenStore,
)

_MAX_INTERVAL = 60.0


class JoinTokenFile(Reconciler):
    """Writes ``join-token``, and replaces it after two thirds of its lifetime.

    It is also replaced at once when a node is revoked, because older tokens do not enroll that node
    again. A token that would be valid for longer than ``lifetime``, in seconds, is revoked as well.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        directory: StateDirectory,
        tokens: TokenStore,
        revocations: Revocations,
        lifetime: float = DEFAULT_TOKEN_LIFETIME,
    ) -> None:
        interval = min(_MAX_INTERVAL, lifetime / 10)
        super().__init__(
            clock, interval, "replacing the join token", self._check, expected=(StateError,)
        )
        self._clock = clock
        self._directory = directory
        self._tokens = tokens
        self._revocations = revocations
        self._lifetime = datetime.timedelta(seconds=lifetime)
        revocations.on_revoked(self._node_revoked)

    def refresh(self) -> None:
        """Replace the token if it is due; raises ``StateError``."""
        issued = self._issued()
        if issued is not None and self._remaining(issued) > self._lifetime + BACKDATE:
            # Issued by a clock that was ahead: a copy of it could be used for years.
            self._tokens.revoke(issued.token_id)
            issued = None
        if issued is None or not self._is_usable(issued):
            token = self._tokens.issue(
                self._lifetime.total_seconds(), after=self._revocations.last_revocation()
            )
            try:
                self._directory.write(JOIN_TOKEN_FILE, f"{token}\n".encode())
            except StateError:
                # Nobody knows the token, and the store is limited and would evict the oldest ones.
                self._tokens.revoke(token.token_id)
                raise

    def replace_if_due(self) -> None:
        """Replace the token if it is due, and log a failure."""
        try:
            self.refresh()
        except StateError as error:
            # The next run retries.
            self._log.error("the join token is not replaced: {error}", error=error)

    def _node_revoked(self, node: str) -> None:
        if self.running:
            self.replace_if_due()

    async def _check(self) -> None:
        self.refresh()

    def read(self) -> JoinToken | None:
        """Return the token in the file, ``None`` without one; raises ``StateError``."""
        content = self._directory.read(JOIN_TOKEN_FILE, secret=True)
        if content is None:
            return None
        try:
            return JoinToken.parse(content.decode("ascii", "replace"))
        except BadToken:
            return None

    def _issued(self) -> IssuedToken | None:
        token = self.read()
        return None if token is None else self._tokens.find(token)

    def _is_usable(self, issued: IssuedToken) -> bool:
        revoked = self._revocations.last_revocation()
        if revoked is not None and revoked >= issued.created:
            return False
        return self._remaining(issued) > self._lifetime / 3

    def _remaining(self, issued: IssuedToken) -> datetime.timedelta:
        return issued.expires - utc_now(self._clock)
