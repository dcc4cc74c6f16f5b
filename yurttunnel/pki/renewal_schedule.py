"""The schedule of renewals, and the backoff after failed attempts."""

from __future__ import annotations

import datetime
import random
from typing import NamedTuple

from yurttunnel.ops.backoff import exponential


class Schedule(NamedTuple):
    """When a certificate is renewed, and the backoff after failed attempts.

    A certificate is renewed at a random time between the fractions ``renewed_from`` and
    ``renewed_until`` of its lifetime, so that certificates that were issued together are not
    renewed together. Pauses double from the first to the longest, in seconds, plus up to the
    fraction ``spread``. ``first_pauses`` are for the time without a valid certificate. Otherwise
    ``renewal_pauses`` are used, which are shortened for a short lifetime and toward its end, to
    allow several attempts.
    """

    renewed_from: float
    renewed_until: float
    first_pauses: tuple[float, float]
    renewal_pauses: tuple[float, float]
    spread: float

    def renewal_at(self, begin: datetime.datetime, end: datetime.datetime) -> datetime.datetime:
        """Return a random renewal time for a certificate of this lifetime."""
        return begin + (end - begin) * random.uniform(self.renewed_from, self.renewed_until)

    def pause(self, failures: int, lifetime: float, remaining: float) -> float:
        """Return the pause after a number of failures; ``remaining`` is 0 without a certificate."""
        first, longest = self.first_pauses
        if remaining > 0:
            first = min(self.renewal_pauses[0], lifetime / 100, remaining / 4)
            longest = max(first, min(self.renewal_pauses[1], remaining / 8))
        return exponential(failures - 1, first, longest) * random.uniform(1.0, 1.0 + self.spread)


CLUSTER_SCHEDULE = Schedule(0.7, 0.9, (2.0, 32.0), (2.0, 32.0), 0.1)
"""The schedule of k8s.io/client-go (``nextRotationDeadline``, and the backoff of
``util/certificate``)."""
STANDALONE_SCHEDULE = Schedule(0.6, 2 / 3, (0.25, 15.0), (60.0, 300.0), 1.0)
"""Renews early, and spreads retries after an outage: one server issues the certificates of many
nodes."""
