"""The rates of events over the last minutes: samples of plain counters, every few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.metrics import Durations

INTERVAL = 5.0
"""The interval between two samples, in seconds."""

MAX_KEPT = 60
"""The number of samples to keep: five minutes."""


def ring() -> deque[float]:
    """Return a ring for samples, newest last."""
    return deque(maxlen=MAX_KEPT)


class _Counted:
    """The rate per second of the counter that ``read()`` returns."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._before = read()
        self.rates = ring()

    def sample(self, seconds: float) -> None:
        now = self._read()
        self.rates.append((now - self._before) / seconds or 0.0)
        self._before = now


class _Timed:
    """The counts of a histogram at the past samples."""

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._past: deque[tuple[int, ...]] = deque([tuple(durations.buckets)], maxlen=MAX_KEPT)

    def sample(self) -> None:
        self._past.append(tuple(self._durations.buckets))

    def quantile(self, part: float) -> float | None:
        """Return the quantile ``part`` of the recent durations, ``None`` without any."""
        now = self._durations.buckets
        counts = [each - before for each, before in zip(now, self._past[0], strict=True)]
        return quantile(self._durations.bounds, counts, part)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """Return the quantile ``part`` of a histogram, interpolated linearly within each bucket.

    It is computed as by ``histogram_quantile`` of Prometheus; ``None`` for an empty histogram.
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
    """Samples counters and histograms while it runs.

    ``counted`` are monotonic counters by name, and ``durations`` are histograms of durations.
    ``sample_more`` is called at each sample, with the seconds since the last one.
    """

    def __init__(
        self,
        clock: IReactorTime,
        counted: Mapping[str, Callable[[], float]],
        durations: Mapping[str, Durations],
        sample_more: Callable[[float], None] | None = None,
    ) -> None:
        self._clock = clock
        self._counted = {name: _Counted(read) for name, read in counted.items()}
        self._timed = {name: _Timed(each) for name, each in durations.items()}
        self._sample_more = sample_more
        self._sampled_at = 0.0
        self._call: IDelayedCall | None = None

    def rates(self, name: str) -> Sequence[float]:
        """Return the rates of a counter, per second."""
        return self._counted[name].rates

    def duration_quantile(self, name: str, part: float) -> float | None:
        """Return the quantile ``part`` of recent durations in seconds, ``None`` without any."""
        return self._timed[name].quantile(part)

    def startService(self) -> None:
        super().startService()
        self._sampled_at = self._clock.seconds()
        self._call = self._clock.callLater(INTERVAL, self._sample)

    def stopService(self) -> None:
        super().stopService()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _sample(self) -> None:
        now = self._clock.seconds()
        # At least the interval, by the same clock as the call.
        seconds, self._sampled_at = now - self._sampled_at, now
        self._call = self._clock.callLater(INTERVAL, self._sample)
        for counted in self._counted.values():
            counted.sample(seconds)
        for timed in self._timed.values():
            timed.sample()
        if self._sample_more is not None:
            self._sample_more(seconds)
