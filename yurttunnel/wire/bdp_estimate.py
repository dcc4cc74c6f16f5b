"""How much to send at a time and ahead of acknowledgements, by the measured rate of the path.

Whatever is under way delays all that comes later, and what is not makes the path idle. So the
bound on what is unacknowledged is twice what a path in balance needs, which also lets it double
in each round trip while it is too low, and pieces are a few milliseconds long.
"""

from __future__ import annotations

from typing import Final

MAX_KEPT: Final = 16 * 1024 * 1024
"""However fast the path, no more data than this may be unacknowledged, bytes. It also is the
bound before anything is known of the path: until then TCP and the first windows of the streams
see to it that little is under way."""

MIN_KEPT: Final = 8 * 1024
"""However slow the path, this much of data may be unacknowledged, bytes: a quarter of a second
of 256 kbit/s."""

ACK_EVERY: Final = 128 * 1024
"""An ACK goes out by itself once this much has come in since the last one, bytes."""

ACK_DELAY: Final = 0.2
"""No byte stays unacknowledged longer than this, seconds."""

TURN: Final = 0.005
"""How long it takes to send what a stream may send in a turn, seconds; a chunk is two."""

MIN_QUANTUM: Final = 1024
MAX_QUANTUM: Final = 64 * 1024
"""The bounds of a stream's turn, bytes."""

MIN_CHUNK: Final = 2 * 1024
MAX_CHUNK: Final = 128 * 1024
"""The bounds of what is given to a connection at a time, bytes. The upper one is what the kernel
takes at once (:data:`~yurttunnel.tunnel.sockets.SESSION_UNSENT_BYTES`): of more a part would wait
for another turn of the reactor."""

QUEUE_TIME: Final = 0.005
"""How long bytes may wait in buffers along the path, seconds, beside :data:`JITTER`."""

JITTER: Final = 0.25
"""What a round trip may take longer than the quickest one without a queue, as a part of it."""

INTERVAL: Final = 0.015
"""How much longer than that the rate is measured, seconds: for a path that is short."""

FIRST_RATE: Final = 1.6 * 1024 * 1024
"""The rate before anything is known of the path, bytes a second: for chunks of 16 KiB."""

UNKNOWN_ROUND_TRIP: Final = 0.1
"""What a round trip counts as before one has been measured, seconds."""


class BdpEstimate:
    """What follows from the rate of acknowledgements.

    - ``most_kept``: how much data may be unacknowledged, bytes;
    - ``chunk``: how much to give to the connection at a time, bytes: ten milliseconds;
    - ``quantum``: what a stream may send before it is another one's turn, bytes: five.

    All that is under way when a measurement begins has been acknowledged a round trip later,
    unless it waits in a queue. Only a measurement in which something did wait says that the path
    is no faster. Any other one, in which perhaps there was not more to send, says that it is at
    least as fast.

    ``has_fallen`` says that in the last measurement the rate was less than half of what it had
    been.
    """

    def __init__(self, now: float) -> None:
        self.has_fallen = False
        self._rate = FIRST_RATE
        self._since: float | None = now
        self._from = 0
        self._in_time = 0
        self._under_way_to = 0
        self.most_kept = MAX_KEPT
        self._adapt(UNKNOWN_ROUND_TRIP, self.most_kept)

    def begin(self, position: int, now: float) -> None:
        """Begin to measure anew: at ``now`` the peer has all before ``position``, and no more."""
        self.has_fallen = False
        self._since = now
        self._from = self._in_time = self._under_way_to = position

    def begin_later(self) -> None:
        """Begin to measure anew with the next acknowledgement: what it brings has come before."""
        self.has_fallen = False
        self._since = None

    def acknowledged(self, position: int, end: int, now: float, round_trip: float | None) -> None:
        """Note that the peer has all before ``position`` of ``end`` bytes that have been sent."""
        if self._since is None:
            self.begin(position, now)
            self._under_way_to = end
            return
        if round_trip is None:
            round_trip = UNKNOWN_ROUND_TRIP
        elapsed = now - self._since
        in_time = _in_time(round_trip)
        # So little may all be acknowledged late although nothing has waited.
        is_little = 0 < self._under_way_to - self._from <= ACK_EVERY
        if is_little:
            in_time += ACK_DELAY
        if elapsed < in_time:
            self._in_time = position
        if elapsed < in_time + INTERVAL:
            return
        rate = (position - self._from) / elapsed
        late = 0.0 if is_little else _delayed(rate)
        is_queued = self._in_time + late < self._under_way_to
        self._since = now
        self._from = self._in_time = position
        self._under_way_to = end
        self.has_fallen = is_queued and rate < self._rate / 2
        if is_queued:
            # Slower by half at most: one pause of the peer must not look like a slow path.
            self._rate = max(rate, self._rate / 2)
            self._adapt(round_trip, MIN_KEPT)
        elif rate > self._rate:
            self._rate = rate
            self._adapt(round_trip, self.most_kept)

    def probed(self, before: float, round_trip: float, draining: float, amount: int) -> None:
        """Take in a probe: there is nothing in the way, and a round trip takes ``round_trip``.

        It was taken for ``before`` seconds up to now. What was under way, ``amount`` bytes, took
        ``draining`` seconds. Where it had to wait, the path was no faster than that. Of a path
        that has become longer no more is known: as much as before may be under way, which
        grows as soon as it turns out to be too little.
        """
        if draining > _in_time(round_trip):
            self._rate = min(self._rate, amount / draining)
            self._adapt(round_trip, MIN_KEPT)
        elif round_trip > _in_time(before):
            self._rate = min(self._rate, self.most_kept / (2 * round_trip))
            self._adapt(round_trip, self.most_kept)

    def _adapt(self, round_trip: float, least: int) -> None:
        """Follow the rate; ``least`` is what ``most_kept`` is to be, at least."""
        rate = self._rate
        necessary = rate * round_trip + _delayed(rate)
        self.most_kept = _within(least, 2 * necessary + rate * TURN, MAX_KEPT)
        self.quantum = _within(MIN_QUANTUM, rate * TURN, MAX_QUANTUM)
        self.chunk = _within(MIN_CHUNK, 2 * rate * TURN, MAX_CHUNK)


def _in_time(round_trip: float) -> float:
    """Return how long a round trip may take without a queue, seconds."""
    return round_trip * (1 + JITTER) + QUEUE_TIME


def _delayed(rate: float) -> float:
    """Return how much the peer leaves unacknowledged although it has arrived, bytes."""
    return min(rate * ACK_DELAY, ACK_EVERY)


def _within(least: int, value: float, most: int) -> int:
    return int(min(max(value, least), most))
