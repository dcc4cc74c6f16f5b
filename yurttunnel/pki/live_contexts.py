"""Contexts that follow certificates and authorities while connections go on."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.contexts import RotatingContexts
from yurttunnel.pki.credentials import Credentials


class LiveContexts:
    """Contexts, each with a function that gives the credentials it should have now."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._followers: list[tuple[RotatingContexts, Callable[[], Credentials]]] = []

    def follow(self, contexts: RotatingContexts, credentials: Callable[[], Credentials]) -> None:
        """Have ``contexts`` use what ``credentials()`` gives from each update on."""
        self._followers.append((contexts, credentials))

    def update(self) -> None:
        """Have all of them use their credentials, or raise and leave all as they were.

        Contexts whose credentials are the same as before are not touched. Those whose certificate
        has expired have to wait for the next one: nobody would accept this one.
        """
        now = utc_now(self._clock)
        swaps = []
        for contexts, desired in self._followers:
            credentials = desired()
            expired = now >= credentials.certificate.not_valid_after_utc
            if credentials != contexts.credentials and not expired:
                swaps.append(contexts.prepare(credentials, now))
        for swap in swaps:
            swap()
