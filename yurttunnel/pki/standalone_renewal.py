"""The service that replaces a certificate in good time, while connections go on."""

from __future__ import annotations

import datetime
import random
from collections.abc import Awaitable, Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.backoff import equal_jitter
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.authority import BACKDATED, utc_now
from yurttunnel.pki.contexts import RotatingContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.directory import StateError

_MAX_INTERVAL = 60.0
_MAX_BACKOFF = 600.0
"""Seconds."""
_LOOKS_PER_LIFE = 100
_RENEWED_FROM = 0.6
_RENEWED_UNTIL = 2 / 3
"""The share of its life after which a certificate is renewed lies between these two, at random,
so that nodes which were enrolled together do not all come back together."""

_NOT_STORED = "the certificate of {whose} is in use but not kept for a restart: {error}"


class CertificateRenewal(Reconciler):
    """Renews the certificate of ``contexts`` after about two thirds of its life.

    ``obtain()`` gets new credentials, which are in use for the handshakes that follow.
    ``store(credentials)`` keeps them for a restart; when it raises :class:`StateError` they are
    in use all the same, and it is called again at each look. Failures to renew are logged and
    tried again after a growing pause; ``last_error`` (empty when all is well) says how it goes.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        whose: str,
        contexts: RotatingContexts,
        obtain: Callable[[], Awaitable[Credentials]],
        store: Callable[[Credentials], None],
    ) -> None:
        life = _life(contexts.credentials)
        interval = min(_MAX_INTERVAL, life / _LOOKS_PER_LIFE)
        super().__init__(clock, interval, f"renewing the certificate of {whose}", self._look)
        self._clock = clock
        self._interval = interval
        self._whose = whose
        self._contexts = contexts
        self._obtain = obtain
        self._store = store
        self._attempts = 0
        self._due = self._renewal_time()
        # In seconds of the clock that nobody sets: the time of day may be years ahead now.
        self._next_attempt = 0.0
        self._to_store: Credentials | None = None
        self._not_stored = ""
        self.last_error = ""

    @property
    def not_after(self) -> datetime.datetime:
        """When the certificate in use ends, in UTC."""
        return self._contexts.credentials.certificate.not_valid_after_utc

    def problem(self) -> str | None:
        """Return why the certificate has expired without another; ``None`` if it has not."""
        if self._is_usable():
            return None
        why = self.last_error or "it is about to be renewed"
        return f"the certificate of {self._whose} has expired at {self.not_after:%F %T} UTC: {why}"

    def warning(self) -> str | None:
        """Return what keeps the certificate in use from being replaced, or from being kept."""
        if not self._is_usable():
            return None
        if self.last_error:
            return (
                f"the certificate of {self._whose}, good until {self.not_after:%F %T} UTC,"
                f" is not renewed: {self.last_error}"
            )
        if self._not_stored:
            return _NOT_STORED.format(whose=self._whose, error=self._not_stored)
        return None

    def _is_usable(self) -> bool:
        return utc_now(self._clock) < self.not_after

    async def _look(self) -> None:
        if self._clock.seconds() >= self._next_attempt and self._is_due():
            await self._renew()
        # That, or one of an earlier look for which there was no room.
        self._keep()

    def _is_due(self) -> bool:
        """Return whether a new one is due, also where a clock that went ahead made the old one."""
        now = utc_now(self._clock)
        return now >= self._due or now < self._contexts.credentials.certificate.not_valid_before_utc

    async def _renew(self) -> None:
        try:
            credentials = await self._obtain()
            self._contexts.rotate(credentials, utc_now(self._clock))
        except Exception as error:
            self._failed(error)
        else:
            self._succeeded(credentials)

    def _keep(self) -> None:
        if self._to_store is None:
            return
        try:
            self._store(self._to_store)
        except StateError as error:
            if str(error) != self._not_stored:
                self._not_stored = str(error)
                self._log.error(_NOT_STORED, whose=self._whose, error=error)
        else:
            self._to_store, self._not_stored = None, ""

    def _succeeded(self, credentials: Credentials) -> None:
        self._attempts = 0
        self._next_attempt = 0.0
        self.last_error = ""
        self._due = self._renewal_time()
        self._log.info(
            "the certificate of {whose} has been renewed and is good until {end:%F %T} UTC",
            whose=self._whose,
            end=self.not_after,
        )
        self._to_store = credentials

    def _failed(self, error: Exception) -> None:
        if not self.running:
            return
        self._attempts += 1
        self.last_error = str(error)
        now = utc_now(self._clock)
        left = (self.not_after - now).total_seconds()
        # A quarter of what is left, so that there is always time for several attempts.
        longest = max(self._interval, min(_MAX_BACKOFF, left / 4))
        pause = equal_jitter(self._attempts, self._interval, longest)
        self._next_attempt = self._clock.seconds() + pause
        self._log.error(
            "the certificate of {whose}, good until {end:%F %T} UTC, could not be renewed:"
            " {error}; trying again in {pause:.0f} seconds",
            whose=self._whose,
            end=self.not_after,
            error=error,
            pause=pause,
        )

    def _renewal_time(self) -> datetime.datetime:
        share = random.uniform(_RENEWED_FROM, _RENEWED_UNTIL)
        life = datetime.timedelta(seconds=_life(self._contexts.credentials))
        return self.not_after - life * (1 - share)


def _life(credentials: Credentials) -> float:
    """Return the seconds from the issue of a certificate to its end, at least one."""
    certificate = credentials.certificate
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc - BACKDATED
    return max(1.0, life.total_seconds())
