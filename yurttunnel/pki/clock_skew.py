"""Messages about certificates that are valid, but not by this machine's clock.

A machine without a battery-backed clock starts with the time of its last shutdown, or none, until
it has synchronized.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

from cryptography import x509

_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60))
_MIN_COUNT = 2
"""The smallest number of a unit that is displayed in that unit."""


class ClockSkew(NamedTuple):
    """Certificates that are not valid ``now``, by this machine's clock, but otherwise correct.

    ``name`` describes them in messages: "the server's certificate".
    """

    now: datetime.datetime
    name: str
    begin: datetime.datetime
    end: datetime.datetime

    @classmethod
    def from_certificates(
        cls, now: datetime.datetime, name: str, *certificates: x509.Certificate
    ) -> ClockSkew:
        """Record the period in which all of ``certificates`` are valid."""
        return cls(
            now.replace(microsecond=0),
            name,
            max(certificate.not_valid_before_utc for certificate in certificates),
            min(certificate.not_valid_after_utc for certificate in certificates),
        )

    def sentence(self, server_time: datetime.datetime | None = None) -> str:
        """Return by how much the clock is wrong, exactly if the server has sent its time."""
        if server_time is not None and self.begin <= server_time <= self.end:
            behind = (server_time - self.now).total_seconds()
            which = "behind" if behind > 0 else "ahead of"
            return (
                f"this machine's clock is {format_duration(abs(behind))} {which} the server's: it"
                f" says {self.now:%F %T} UTC. The agent waits until it is set"
            )
        wrong = max(self.begin - self.now, self.now - self.end)
        return (
            f"the clock of this machine seems wrong, by {wrong} at least: it says"
            f" {self.now:%F %T} UTC, and {self.name} is valid from {self.begin:%F %T} to"
            f" {self.end:%F %T} UTC. If the clock is wrong, set it: the agent waits for that. If"
            " it is right, check the server's"
        )


def format_duration(seconds: float) -> str:
    """Return a duration for people: in the largest unit of which there are at least two."""
    for unit, size in _UNITS:
        if seconds >= _MIN_COUNT * size:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds)} seconds"
