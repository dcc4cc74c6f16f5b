"""An estimate of the bandwidth-delay product, which limits chunk size and unacknowledged data.

Too much data in flight delays everything that is sent later, and too little leaves the path idle.
So the limit on unacknowledged data is twice what a balanced path needs, which also allows it to
double in each round trip while it is too low. Chunks are a few milliseconds long.
"""

from __future__ import annotations

from typing import Final

MAX_UNACKNOWLEDGED: Final = 16 * 1024 * 1024
"""The upper limit of unacknowledged data in bytes, on any path. It also applies before the path is
measured: until then TCP and the initial windows of the streams keep the data in flight small."""

MIN_UNACKNOWLEDGED: Final = 8 * 1024
"""The lower limit of unacknowledged data in bytes, on any path: a quarter of a second at
256 kbit/s."""

ACK_EVERY: Final = 128 * 1024
"""The number of bytes received since the last ACK after which one is sent on its own."""

ACK_DELAY: Final = 0.2
"""The maximum time in seconds before a received byte is acknowledged."""

QUANTUM_TIME: Final = 0.005
"""The time in seconds that it takes to send one quantum; a chunk takes two."""

MIN_QUANTUM: Final = 1024
MAX_QUANTUM: Final = 64 * 1024
"""The range of the quantum of a stream in bytes."""

MIN_CHUNK: Final = 2 * 1024
MAX_CHUNK: Final = 128 * 1024
"""The range of a chunk, which is written to a connection in one call, in bytes. The maximum is what
the kernel accepts at once (:data:`~yurttunnel.tunnel.sockets.SESSION_UNSENT_BYTES`): the rest of a
larger chunk would wait for another iteration of the reactor."""

QUEUE_TIME: Final = 0.005
"""The time in seconds that bytes may wait in buffers along the path, in addition to
:data:`JITTER`."""

JITTER: Final = 0.25
"""How much longer than the shortest one a round trip may take without a queue, as a fraction."""

INTERVAL: Final = 0.015
"""The time in seconds that a measurement of the rate takes longer than that, for short paths."""

FIRST_RATE: Final = 1.6 * 1024 * 1024
"""The rate before the path is measured, in bytes a second; it results in chunks of 16 KiB."""

UNKNOWN_ROUND_TRIP: Final = 0.1
"""The assumed round-trip time before the first measurement, in seconds."""


class BdpEstimate:
    """The limits that are derived from the rate of acknowledgements.

    - ``max_unacknowledged``: the maximum of unacknowledged data, in bytes;
    - ``chunk``: the number of bytes to write to the connection in one call: ten milliseconds;
    - ``quantum``: the number of bytes that a stream sends before the next one: five milliseconds.

    Data in flight at the start of a measurement is acknowledged one round trip later, unless it
    waits in a queue. Only a measurement with a queue is an upper bound of the path's rate. Any
    other, which may just not have had more to send, is a lower bound.

    ``has_fallen`` is true if the rate of the last measurement was less than half of the previous
    rate.
    """

    def __init__(self, now: float) -> None:
        self.has_fallen = False
        self._rate = FIRST_RATE
        self._since: float | None = now
        self._from = 0
        self._in_time = 0
        self._in_flight_end = 0
        self.max_unacknowledged = MAX_UNACKNOWLEDGED
        self._adapt(UNKNOWN_ROUND_TRIP, self.max_unacknowledged)

    def begin(self, position: int, now: float) -> None:
        """Start a new measurement: at ``now`` the peer has the bytes before ``position`` only."""
        self.has_fallen = False
        self._since = now
        self._from = self._in_time = self._in_flight_end = position

    def begin_later(self) -> None:
        """Start a new measurement at the next acknowledgement, whose bytes do not count in it."""
        self.has_fallen = False
        self._since = None

    def acknowledged(self, position: int, end: int, now: float, round_trip: float | None) -> None:
        """Record that the peer has all bytes before ``position``, of ``end`` bytes sent."""
        if self._since is None:
            self.begin(position, now)
            self._in_flight_end = end
            return
        if round_trip is None:
            round_trip = UNKNOWN_ROUND_TRIP
        elapsed = now - self._since
        in_time = _in_time(round_trip)
        # So little data may be acknowledged late even without a queue.
        is_little = 0 < self._in_flight_end - self._from <= ACK_EVERY
        if is_little:
            in_time += ACK_DELAY
        if elapsed < in_time:
            self._in_time = position
        if elapsed < in_time + INTERVAL:
            return
        rate = (position - self._from) / elapsed
        late = 0.0 if is_little else _delayed(rate)
        is_queued = self._in_time + late < self._in_flight_end
        self._since = now
        self._from = self._in_time = position
        self._in_flight_end = end
        self.has_fallen = is_queued and rate < self._rate / 2
        if is_queued:
            # Reduced by at most half: a single pause of the peer must not look like a slow path.
            self._rate = max(rate, self._rate / 2)
            self._adapt(round_trip, MIN_UNACKNOWLEDGED)
        elif rate > self._rate:
            self._rate = rate
            self._adapt(round_trip, self.max_unacknowledged)

    def probed(self, before: float, round_trip: float, draining: float, amount: int) -> None:
        """Process the result of a probe: without a queue a round trip takes ``round_trip`` seconds.

        The estimate so far was ``before``. The ``amount`` bytes in flight took ``draining`` seconds
        to drain. If they were queued, that is an upper bound of the rate. If the round trip has
        become longer, the rate is unknown: the limit of data in flight stays as it is, and grows as
        soon as it proves too low.
        """
        if draining > _in_time(round_trip):
            self._rate = min(self._rate, amount / draining)
            self._adapt(round_trip, MIN_UNACKNOWLEDGED)
        elif round_trip > _in_time(before):
            self._rate = min(self._rate, self.max_unacknowledged / (2 * round_trip))
            self._adapt(round_trip, self.max_unacknowledged)

    def _adapt(self, round_trip: float, minimum: int) -> None:
        """Recompute the limits from the rate; ``max_unacknowledged`` is at least ``minimum``."""
        rate = self._rate
        necessary = rate * round_trip + _delayed(rate)
        self.max_unacknowledged = _clamp(
            minimum, 2 * necessary + rate * QUANTUM_TIME, MAX_UNACKNOWLEDGED
        )
        self.quantum = _clamp(MIN_QUANTUM, rate * QUANTUM_TIME, MAX_QUANTUM)
        self.chunk = _clamp(MIN_CHUNK, 2 * rate * QUANTUM_TIME, MAX_CHUNK)


def _in_time(round_trip: float) -> float:
    """Return the maximum round-trip time without a queue, in seconds."""
    return round_trip * (1 + JITTER) + QUEUE_TIME


def _delayed(rate: float) -> float:
    """Return how many received bytes the peer may not have acknowledged yet."""
    return min(rate * ACK_DELAY, ACK_EVERY)


def _clamp(minimum: int, value: float, maximum: int) -> int:
    return int(min(max(value, minimum), maximum))
