"""The throughput of each session, and of all together, over the last minutes."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.slices import Slices, visit
from yurttunnel.ops.status.throughput import MAX_KEPT, ring
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters


@dataclass(slots=True)
class Rates:
    """Bytes per second in the past samples, newest last."""

    received: deque[float] = field(default_factory=ring)
    sent: deque[float] = field(default_factory=ring)

    def both(self) -> Sequence[float]:
        """Return the sums of both directions."""
        return [sum(each) for each in zip(self.received, self.sent, strict=True)]

    def newest(self) -> tuple[float, float]:
        """Return the last sample, received and sent; zero before the first sample."""
        return (self.received[-1], self.sent[-1]) if self.received else (0.0, 0.0)


@dataclass(slots=True)
class _Measured:
    """The bytes carried until the last sample, and the samples of rates and round trips."""

    received: int
    sent: int
    rates: Rates = field(default_factory=Rates)
    # Four bytes each, where a ring of floats would need some thirty.
    round_trips: array[float] = field(default_factory=lambda: array("f"))

    def sample(self, received: int, sent: int, seconds: float) -> None:
        # "or 0.0" is a shared object: most sessions are idle, and each float takes 24 bytes.
        self.rates.received.append((received - self.received) / seconds or 0.0)
        self.rates.sent.append((sent - self.sent) / seconds or 0.0)
        self.received, self.sent = received, sent

    def sample_round_trip(self, seconds: float | None) -> None:
        self.round_trips.append(seconds or 0.0)
        if len(self.round_trips) > MAX_KEPT:
            del self.round_trips[0]


class SessionRates(Service):
    """The samples of all sessions of the process, and of their sum.

    A session is forgotten at the first sample after its end. Sampling two thousand sessions takes
    some two milliseconds; it takes no snapshots, to be fast, and runs in slices.
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
        self._measured_at = 0.0
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
        """Return the round trips of one session in seconds, 0 where none was measured."""
        measured = self._measured.get(session_id)
        return () if measured is None else measured.round_trips

    def startService(self) -> None:
        super().startService()
        self._measured_at = self._clock.seconds()

    def stopService(self) -> None:
        """Cancel a sample in progress."""
        super().stopService()
        if self._sampling is not None:
            self._sampling.cancel()

    def sample(self, seconds: float) -> None:
        """Take a sample, ``seconds`` after the last one; skip sessions if one is in progress."""
        self._total.sample(self._counters.bytes_received, self._counters.bytes_sent, seconds)
        if self._sampling is None:
            now = self._clock.seconds()
            passed, self._measured_at = now - self._measured_at, now
            sampling = self._sampling = self._slices.join(self._sample_sessions(passed))
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
