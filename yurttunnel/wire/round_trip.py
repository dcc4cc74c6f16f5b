"""How far away the peer is: the round trip of the path, without this side's data along it.

The time between a PING and its PONG is the round trip and the time that the PING has waited
behind data, and how much of that may be under way follows from the round trip. While a lot is
always under way the shortest of some samples would thus grow, and the queue with it. So now and
then, and when a path seems to have become slow at once, bulk data wait for a round trip: that is
a probe, as ProbeRTT of BBR (draft-ietf-ccwg-bbr, section 5.3.4).

States of a probe::

             begin               PONG                   PONG
    ENDED  --------->  DRAINING  ----->  MEASURING  ----------->  ENDED
                  (bulk data wait,   (a PING has nothing
                  a PING follows     before it, data go
                  the last)          on after it)

A PING that is due during a probe ends it: the path has not become empty in time.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from yurttunnel.wire import frames

SAMPLES: Final = 8

PROBE_AFTER: Final = 10.0
PROBE_ROUND_TRIPS: Final = 20
"""While there is bulk data a probe follows so many seconds after the last one, and so many round
trips: what the path does not carry meanwhile is a round trip's worth, a twentieth at most."""

PROBE_AGAIN: Final = 2.0
"""A path that seems to have become slow is probed at most once in so many seconds."""


class Probe(Enum):
    """How far a probe is; see the module."""

    ENDED = "ended"
    DRAINING = "draining"
    MEASURING = "measuring"


class RoundTrip:
    """The samples of one session's connections, and its probes.

    ``seconds`` is the shortest of the last samples, none of which is older than the last probe, or
    than the first answer by the connection; ``None`` before the first one of all. ``draining`` is
    how long the path took to become empty then.
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
        """Begin with a new connection, on which nothing is under way yet.

        It may take another path: what was measured before counts until there is an answer by it.
        """
        self._sent_at = None
        self._samples.clear()
        self.probe = Probe.ENDED
        # The path is empty, but how fast it is need not wait to be found out.
        self._probed_at = now - PROBE_AGAIN

    def ping(self, now: float) -> bytes:
        """Return the next PING."""
        self._number += 1
        self._sent_at = now
        return frames.offset_frame(frames.PING, 0, self._number)

    def has_sent(self, number: int) -> bool:
        """Return whether there was a PING with that number."""
        return 0 < number <= self._number

    def pong(self, number: int, now: float) -> Probe:
        """Take a PONG; one that answers an earlier PING than the last says nothing of the time.

        Gives what of a probe has ended by it. After DRAINING a PING is to follow at once.
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
        """Return how many seconds ago the last probe began; 0 while one is under way."""
        return now - self._probed_at if self.probe is Probe.ENDED else 0.0

    @property
    def longest_age(self) -> float:
        """After how many seconds another probe is due, while there is bulk data."""
        return max(PROBE_AFTER, PROBE_ROUND_TRIPS * (self.seconds or 0.0))

    def begin(self, now: float) -> None:
        """Begin a probe: bulk data wait, and a PING is to follow at once."""
        self.probe = Probe.DRAINING
        self._probed_at = now

    def give_up(self) -> None:
        """End a probe that may be under way without a result."""
        self.probe = Probe.ENDED
