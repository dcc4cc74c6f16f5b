"""The round-trip time of the path, without the queueing delay of this side's data.

The time between a PING and its PONG is the round trip plus the time that the PING has queued behind
data, and the limit for data in flight depends on the round trip. Under constant load even the
shortest of several samples would thus grow, and the queue with it. So bulk data is paused for a
round trip from time to time, and when a path seems to have become slow at once. This is a probe,
like ProbeRTT of BBR (draft-ietf-ccwg-bbr, section 5.3.4).

States of a probe::

             begin               PONG                   PONG
    ENDED  --------->  DRAINING  ----->  MEASURING  ----------->  ENDED
                  (bulk data is      (a PING follows,
                  paused; a PING     with nothing queued
                  follows the last)  before it; data resumes)

A PING that becomes due during a probe ends it: the path has not drained in time.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from yurttunnel.wire import frames

SAMPLES: Final = 8

PROBE_AFTER: Final = 10.0
PROBE_ROUND_TRIPS: Final = 20
"""The seconds, and the number of round trips, between probes while there is bulk data; the longer
one applies. A probe costs one round trip of throughput, so at most a twentieth."""

PROBE_AGAIN: Final = 2.0
"""The minimum number of seconds between probes of a path that seems to have become slow."""


class Probe(Enum):
    """The state of a probe; see the module docstring."""

    ENDED = "ended"
    DRAINING = "draining"
    MEASURING = "measuring"


class RoundTrip:
    """The samples of one session's connections, and its probes.

    ``seconds`` is the shortest of the last samples, ``None`` before the first. None of these is
    older than the last probe, or than the first answer on the current connection. ``draining`` is
    the time that the path took to drain in the last probe.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.draining = 0.0
        self.probe = Probe.ENDED
        self._samples: list[float] = []
        self._number = 0
        self._sent_at: float | None = None
        self._probed_at = float("-inf")

    def connected(self, now: float) -> None:
        """Start with a new connection, without data in flight.

        It may use another path: previous samples count only until its first answer.
        """
        self._sent_at = None
        self._samples.clear()
        self.probe = Probe.ENDED
        # An empty path needs no regular probe soon, but one for a fallen rate is allowed at once.
        self._probed_at = now - PROBE_AGAIN

    def ping(self, now: float) -> bytes:
        """Return the next PING."""
        self._number += 1
        self._sent_at = now
        return frames.offset_frame(frames.PING, 0, self._number)

    def has_sent(self, number: int) -> bool:
        """Return whether a PING with that number was sent."""
        return 0 < number <= self._number

    def pong(self, number: int, now: float) -> Probe:
        """Process a PONG; one for an earlier PING than the last is no sample.

        Returns the state of the probe that it ends. After DRAINING a PING must follow at once.
        """
        if number != self._number or self._sent_at is None:
            return Probe.ENDED
        ended = self.probe
        sample = now - self._sent_at
        if ended is Probe.DRAINING:
            self.draining = sample
        elif ended is Probe.MEASURING:
            self._samples.clear()
        self._samples = [*self._samples[1 - SAMPLES :], sample]
        self._sent_at = None
        self.seconds = min(self._samples)
        self.probe = Probe.MEASURING if ended is Probe.DRAINING else Probe.ENDED
        return ended

    def age(self, now: float) -> float:
        """Return how many seconds ago the last probe began; 0 while one is in progress."""
        return now - self._probed_at if self.probe is Probe.ENDED else 0.0

    @property
    def max_probe_age(self) -> float:
        """The number of seconds after which another probe is due while there is bulk data."""
        return max(PROBE_AFTER, PROBE_ROUND_TRIPS * (self.seconds or 0.0))

    def begin(self, now: float) -> None:
        """Start a probe: bulk data is paused, and a PING must follow at once."""
        self.probe = Probe.DRAINING
        self._probed_at = now

    def abort_probe(self) -> None:
        """Abort a probe in progress, if any."""
        self.probe = Probe.ENDED
