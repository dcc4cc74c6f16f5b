"""When a certificate is renewed, and how long is waited after attempts that failed."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass

from yurttunnel.ops.backoff import doubled


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a certificate is renewed, and when attempts that failed are made again.

    It is renewed when between ``renewed_from`` and ``renewed_until`` of its life are over, at
    random so that those that were issued together are not renewed together. Pauses are doubled
    from the first to the longest, and up to ``spread`` of that longer, seconds all: ``pauses``
    while there is no certificate that is good, else ``patient_pauses``, which are shorter for a
    short life and toward its end, so that there is always time for several attempts.
    """

    renewed_from: float
    renewed_until: float
    pauses: tuple[float, float]
    patient_pauses: tuple[float, float]
    spread: float

    def renewal_at(self, begin: datetime.datetime, end: datetime.datetime) -> datetime.datetime:
        """Choose when a certificate of this life is renewed."""
        return begin + (end - begin) * random.uniform(self.renewed_from, self.renewed_until)

    def pause(self, failures: int, life: float, left: float) -> float:
        """Return the pause after so many failures; none of the life is left without a good one."""
        first, longest = self.pauses
        if left > 0:
            first = min(self.patient_pauses[0], life / 100, left / 4)
            longest = max(first, min(self.patient_pauses[1], left / 8))
        return doubled(failures - 1, first, longest) * random.uniform(1.0, 1.0 + self.spread)


CLUSTER_SCHEDULE = Schedule(0.7, 0.9, (2.0, 32.0), (2.0, 32.0), 0.1)
"""That of k8s.io/client-go (``nextRotationDeadline``, and the backoff of ``util/certificate``)."""
STANDALONE_SCHEDULE = Schedule(0.6, 2 / 3, (0.25, 15.0), (60.0, 300.0), 1.0)
"""Early, and after an outage by and by: one server issues the certificates of many nodes."""
