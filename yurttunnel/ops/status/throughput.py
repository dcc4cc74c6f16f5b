"""How much each session carries, over the last minutes: samples taken every few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime

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
    """What one thing had carried at the last sample."""

    received: int
    sent: int
    rates: Rates = field(default_factory=Rates)

    def sample(self, received: int, sent: int, seconds: float) -> None:
        # "or 0.0" is one object for all: most sessions are idle, and each float takes 24 bytes.
        self.rates.received.append((received - self.received) / seconds or 0.0)
        self.rates.sent.append((sent - self.sent) / seconds or 0.0)
        self.received, self.sent = received, sent


class Throughput(Service):
    """Samples all sessions of the process, and their sum, while it runs.

    A session is forgotten with its first sample after its end. Two thousand take some two
    milliseconds a sample, which is why no snapshots are taken.
    """

    def __init__(
        self,
        clock: IReactorTime,
        counters: TunnelCounters,
        sessions: Callable[[], Iterable[TunnelSession]],
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._sessions = sessions
        self._total = _Measured(counters.bytes_received, counters.bytes_sent)
        self._measured: dict[bytes, _Measured] = {}
        self._sampled_at = 0.0
        self._call: IDelayedCall | None = None

    def total(self) -> Rates:
        """Return the rates of all sessions together."""
        return self._total.rates

    def of(self, session_id: bytes) -> Rates:
        """Return the rates of one session; there are none before its second sample."""
        measured = self._measured.get(session_id)
        return Rates() if measured is None else measured.rates

    def startService(self) -> None:
        """Begin to sample."""
        super().startService()
        self._sampled_at = self._clock.seconds()
        self._call = self._clock.callLater(INTERVAL, self._sample)

    def stopService(self) -> None:
        """Sample no more."""
        super().stopService()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _sample(self) -> None:
        now = self._clock.seconds()
        # At least the interval, by the same clock as the call.
        seconds, self._sampled_at = now - self._sampled_at, now
        self._call = self._clock.callLater(INTERVAL, self._sample)
        self._total.sample(self._counters.bytes_received, self._counters.bytes_sent, seconds)
        before, self._measured = self._measured, {}
        for session in self._sessions():
            wire = session.wire
            measured = before.get(session.session_id)
            if measured is None:
                measured = _Measured(wire.bytes_received, wire.bytes_sent)
            else:
                measured.sample(wire.bytes_received, wire.bytes_sent, seconds)
            self._measured[session.session_id] = measured
