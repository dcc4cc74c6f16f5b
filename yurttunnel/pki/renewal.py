"""The service that replaces a certificate in good time, while connections go on."""

from __future__ import annotations

import datetime
import random
from collections.abc import Awaitable, Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.authority import BACKDATED, utc_now
from yurttunnel.pki.contexts import RotatingContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.periodic import PeriodicService

_MAX_INTERVAL = 60.0
_MAX_BACKOFF = 600.0
"""Seconds."""
_LOOKS_PER_LIFE = 100
_RENEWED_FROM = 0.6
_RENEWED_UNTIL = 2 / 3
"""The share of its life after which a certificate is renewed lies between these two, at random,
so that nodes which were enrolled together do not all come back together."""


class ContextsTogether:
    """Several contexts with the same certificate, which is replaced in all of them or none."""

    def __init__(self, *contexts: RotatingContexts) -> None:
        self._contexts = contexts
        self.credentials = contexts[0].credentials

    def rotate(self, credentials: Credentials, now: datetime.datetime) -> None:
        """Use ``credentials`` from now on, or raise and leave everything as it was."""
        swaps = [contexts.prepare(credentials, now) for contexts in self._contexts]
        for swap in swaps:
            swap()
        self.credentials = credentials


class CertificateRenewal(PeriodicService):
    """Renews the certificate of ``contexts`` after about two thirds of its life.

    ``obtain()`` gets new credentials and ``store(credentials)`` keeps them. They are in use
    for the handshakes that follow. Failures are logged and tried again after a growing pause;
    ``last_error`` (empty when all is well) says how it goes.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        whose: str,
        contexts: RotatingContexts | ContextsTogether,
        obtain: Callable[[], Awaitable[Credentials]],
        store: Callable[[Credentials], None],
    ) -> None:
        life = _life(contexts.credentials)
        interval = min(_MAX_INTERVAL, life / _LOOKS_PER_LIFE)
        super().__init__(clock, interval, f"renewing the certificate of {whose}", self._look)
        self._clock = clock
        self._whose = whose
        self._contexts = contexts
        self._obtain = obtain
        self._store = store
        self._attempts = 0
        self._due = self._renewal_time()
        self.last_error = ""

    @property
    def not_after(self) -> datetime.datetime:
        """When the certificate in use ends, in UTC."""
        return self._contexts.credentials.certificate.not_valid_after_utc

    async def _look(self) -> None:
        now = utc_now(self._clock)
        if now < self._due:
            return
        try:
            credentials = await self._obtain()
            credentials.check(utc_now(self._clock))
            self._store(credentials)
            self._contexts.rotate(credentials, utc_now(self._clock))
        except Exception as error:
            self._failed(error)
        else:
            self._succeeded()

    def _succeeded(self) -> None:
        self._attempts = 0
        self.last_error = ""
        self._due = self._renewal_time()
        self._log.info(
            "the certificate of {whose} has been renewed and is good until {end:%F %T} UTC",
            whose=self._whose,
            end=self.not_after,
        )

    def _failed(self, error: Exception) -> None:
        if not self.running:
            return
        self._attempts += 1
        self.last_error = str(error)
        now = utc_now(self._clock)
        left = (self.not_after - now).total_seconds()
        # A quarter of what is left, so that there is always time for several attempts.
        longest = max(self._interval, min(_MAX_BACKOFF, left / 4))
        pause = min(longest, self._interval * 2.0**self._attempts) * random.uniform(0.5, 1.0)
        self._due = now + datetime.timedelta(seconds=pause)
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
    """Give the seconds from the issue of a certificate to its end, at least one."""
    certificate = credentials.certificate
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc - BACKDATED
    return max(1.0, life.total_seconds())
