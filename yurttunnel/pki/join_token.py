"""The service that keeps a good join token in the server's state directory."""

from __future__ import annotations

import datetime

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import (
    DEFAULT_TOKEN_LIFETIME,
    JOIN_TOKEN_FILE,
    BadToken,
    JoinToken,
    TokenStore,
)

_MAX_INTERVAL = 60.0


class JoinTokenFile(Reconciler):
    """Writes ``join-token``, and replaces it when two thirds of its life are over.

    It is also replaced at once when a node has been revoked, because older tokens do not
    enroll that node again. ``lifetime`` is in seconds.
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
            clock, interval, "replacing the join token", self._look, expected=(StateError,)
        )
        self._clock = clock
        self._directory = directory
        self._tokens = tokens
        self._revocations = revocations
        self._lifetime = lifetime
        revocations.on_revoked(self._node_revoked)

    def refresh(self) -> None:
        """Replace the token if it is time; raises ``StateError``."""
        if not self._is_good():
            token = self._tokens.issue(self._lifetime, after=self._revocations.last_revocation())
            self._directory.write(JOIN_TOKEN_FILE, f"{token}\n".encode())

    def _node_revoked(self, node: str) -> None:
        try:
            self.refresh()
        except StateError as error:
            # The next look tries again.
            self._log.error("the join token is not replaced: {error}", error=error)

    async def _look(self) -> None:
        self.refresh()

    def read(self) -> JoinToken | None:
        """Return the token that is in the file, ``None`` without one; raises ``StateError``."""
        content = self._directory.read(JOIN_TOKEN_FILE, secret=True)
        if content is None:
            return None
        try:
            return JoinToken.parse(content.decode("ascii", "replace"))
        except BadToken:
            return None

    def _is_good(self) -> bool:
        token = self.read()
        issued = None if token is None else self._tokens.find(token)
        if issued is None:
            return False
        revoked = self._revocations.last_revocation()
        if revoked is not None and revoked >= issued.created:
            return False
        left = issued.expires - utc_now(self._clock)
        return left > datetime.timedelta(seconds=self._lifetime) / 3
