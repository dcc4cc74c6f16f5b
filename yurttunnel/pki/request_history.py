"""How the requests for one certificate have gone, and when it is time for the next one."""

from __future__ import annotations

import random

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.backoff import doubled
from yurttunnel.ops.cluster_trust import RequestCounters
from yurttunnel.pki.certificate_requests import RequestDenied

FIRST_PAUSE = 2.0
LONGEST_PAUSE = 32.0
"""Seconds between two attempts: doubled each time, up to a tenth more, and no end of them (the
backoff of k8s.io/client-go/util/certificate)."""


class RequestHistory:
    """Counts what has become of requests, and spaces those that follow a failure.

    ``failure`` is one line on the last one, ``None`` when that has succeeded.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, name: str) -> None:
        self._clock = clock
        self._name = name
        self._failures = 0
        self._kind: type[Exception] | None = None
        self._next = 0.0
        self.failure: str | None = None
        self.counters = RequestCounters()

    @property
    def is_due(self) -> bool:
        """Whether the pause after the last failure is over."""
        return self._clock.seconds() >= self._next

    def succeeded(self) -> None:
        """Note that there is a certificate."""
        self.counters.issued += 1
        self._failures = 0
        self._kind = None
        self.failure = None

    def failed(self, error: Exception) -> None:
        """Note why there is none."""
        if isinstance(error, RequestDenied):
            self.counters.denied += 1
        else:
            self.counters.failed += 1
        self._failures += 1
        self.failure = " ".join(str(error).split()) or type(error).__name__
        pause = doubled(self._failures - 1, FIRST_PAUSE, LONGEST_PAUSE) * random.uniform(1.0, 1.1)
        self._next = self._clock.seconds() + pause
        # An outage of days is not worth thousands of lines: the 1st, 2nd, 4th, 8th ... is.
        if type(error) is not self._kind or self._failures.bit_count() == 1:
            self._log.error(
                "the {name} was not obtained: {error}; {failures} attempts have failed now, the"
                " next one is in {pause:.0f} seconds",
                name=self._name,
                error=self.failure,
                failures=self._failures,
                pause=pause,
            )
        self._kind = type(error)
