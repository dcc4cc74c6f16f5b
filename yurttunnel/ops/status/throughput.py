"""What happens, over the last minutes: samples taken every few seconds of plain counters."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.metrics import Durations
from yurttunnel.ops.slices import Slices, visit
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters

INTERVAL = 5.0
"""Seconds between two samples."""

KEPT = 60
"""How many samples are kept of each session: five minutes."""


def _ring() -> deque[float]:
    return deque(maxlen=KEPT)


@dataclass(slots=True)
class Rates:
    """Bytes per second in the past samples, the newest last."""

    received: deque[float] = field(default_factory=_ring)
    sent: deque[float] = field(default_factory=_ring)

    def both(self) -> Sequence[float]:
        """Add up the two directions."""
        return [sum(each) for each in zip(self.received, self.sent, strict=True)]

    def newest(self) -> tuple[float, float]:
        """Return the last sample, received and sent; nothing has been carried before the first."""
        return (self.received[-1], self.sent[-1]) if self.received else (0.0, 0.0)


@dataclass(slots=True)
class _Measured:
    """What one thing had carried at the last sample, and its round trips until then."""

    received: int
    sent: int
    rates: Rates = field(default_factory=Rates)
    # Four bytes each, where a ring of floats would take some thirty.
    round_trips: array[float] = field(default_factory=lambda: array("f"))

    def sample(self, received: int, sent: int, seconds: float) -> None:
        # "or 0.0" is one object for all: most sessions are idle, and each float takes 24 bytes.
        self.rates.received.append((received - self.received) / seconds or 0.0)
        self.rates.sent.append((sent - self.sent) / seconds or 0.0)
        self.received, self.sent = received, sent

    def sample_round_trip(self, seconds: float | None) -> None:
        self.round_trips.append(seconds or 0.0)
        if len(self.round_trips) > KEPT:
            del self.round_trips[0]


class _Counted:
    """How often something has happened a second, by the counter that ``read()`` gives."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._before = read()
        self.rates = _ring()

    def sample(self, seconds: float) -> None:
        now = self._read()
        self.rates.append((now - self._before) / seconds or 0.0)
        self._before = now


class _Timed:
    """What a histogram had counted at the past samples."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._past: deque[tuple[int, ...]] = deque([tuple(durations.buckets)], maxlen=KEPT)

    def sample(self) -> None:
        self._past.append(tuple(self._durations.buckets))

    def quantile(self, part: float) -> float | None:
        """Return what ``part`` of what was counted of late stayed below, ``None`` without any."""
        now = self._durations.buckets
        counts = [each - before for each, before in zip(now, self._past[0], strict=True)]
        return quantile(self._durations.bounds, counts, part)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """Return below what ``part`` of the durations in a histogram are, evenly within each bucket.

    As ``histogram_quantile`` of Prometheus has it; ``None`` where there is none.
    """
    left = part * sum(counts)
    if not left:
        return None
    lower = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if left <= count:
            return lower + (bound - lower) * left / count
        left -= count
        lower = bound
    return lower


class Throughput(Service):
    """Samples all sessions of the process, their sum, and counters, while it runs.

    A session is forgotten with its first sample after its end. Two thousand take some two
    milliseconds a sample, which is why no snapshots are taken; it is done in slices. ``counted``
    are counters that only grow, by their names, and ``durations`` are histograms of what takes its
    time.
    """

    def __init__(
        self,
        clock: IReactorTime,
        counters: TunnelCounters,
        sessions: Callable[[], Iterable[TunnelSession]],
        counted: Mapping[str, Callable[[], float]],
        durations: Mapping[str, Durations],
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._sessions = sessions
        self._counted = {name: _Counted(read) for name, read in counted.items()}
        self._timed = {name: _Timed(each) for name, each in durations.items()}
        self._total = _Measured(counters.bytes_received, counters.bytes_sent)
        self._measured: dict[bytes, _Measured] = {}
        self._sampled_at = self._measured_at = 0.0
        self._call: IDelayedCall | None = None
        self._slices = Slices(clock)
        self._sampling: Deferred[bytes] | None = None

    def total(self) -> Rates:
        """Return the rates of all sessions together."""
        return self._total.rates

    def of(self, session_id: bytes) -> Rates:
        """Return the rates of one session; there are none before its second sample."""
        measured = self._measured.get(session_id)
        return Rates() if measured is None else measured.rates

    def round_trips(self, session_id: bytes) -> Sequence[float]:
        """Return the round trips of one session in seconds, 0 for what was not measured yet."""
        measured = self._measured.get(session_id)
        return () if measured is None else measured.round_trips

    def often(self, name: str) -> Sequence[float]:
        """Return how often something has happened, a second."""
        return self._counted[name].rates

    def took(self, name: str, part: float) -> float | None:
        """Return in how many seconds ``part`` of something was done of late, ``None`` for none."""
        return self._timed[name].quantile(part)

    def startService(self) -> None:
        """Begin to sample."""
        super().startService()
        self._sampled_at = self._measured_at = self._clock.seconds()
        self._call = self._clock.callLater(INTERVAL, self._sample)

    def stopService(self) -> None:
        """Sample no more."""
        super().stopService()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        if self._sampling is not None:
            self._sampling.cancel()

    def _sample(self) -> None:
        now = self._clock.seconds()
        # At least the interval, by the same clock as the call.
        seconds, self._sampled_at = now - self._sampled_at, now
        self._call = self._clock.callLater(INTERVAL, self._sample)
        self._total.sample(self._counters.bytes_received, self._counters.bytes_sent, seconds)
        for counted in self._counted.values():
            counted.sample(seconds)
        for timed in self._timed.values():
            timed.sample()
        if self._sampling is None:
            seconds, self._measured_at = now - self._measured_at, now
            sampling = self._sampling = self._slices.join(self._sample_sessions(seconds))
            _ = sampling.addBoth(self._sampled).addErrback(lambda why: why.trap(CancelledError))

    def _sample_sessions(self, seconds: float) -> Iterator[str]:
        measured: dict[bytes, _Measured] = {}

        def sample(session: TunnelSession) -> None:
            session_id = session.session_id
            measured[session_id] = _measure(self._measured.get(session_id), session, seconds)

        yield from visit(list(self._sessions()), sample)
        self._measured = measured

    def _sampled(self, result: object) -> object:
        self._sampling = None
        return result


def _measure(measured: _Measured | None, session: TunnelSession, seconds: float) -> _Measured:
    wire = session.wire
    if measured is None:
        measured = _Measured(wire.bytes_received, wire.bytes_sent)
    else:
        measured.sample(wire.bytes_received, wire.bytes_sent, seconds)
    measured.sample_round_trip(wire.round_trip)
    return measured
