"""The health pages: whether load balancers should send clients of Services to this node.

The pages are those of kube-proxy (``pkg/proxy/healthcheck/proxy_health.go`` of Kubernetes), which
load balancers and kubelets request: on ``/healthz``, 503 also means that the Node is about to be
deleted; on ``/livez`` it does not. ``/healthz`` also returns 503 while this proxy drains;
kube-proxy has no drain.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IReactorTime

from yurttunnel.metrics import Durations, Metric, counter, counts_of
from yurttunnel.ops.clocks import time_of_day, timestamp
from yurttunnel.ops.http_site import PageResponse, Pages, text

MAX_PERIODS = 2
"""The number of sync periods that a change may wait, as in kube-proxy."""

PROGRAMMING_BOUNDS = (0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
"""The buckets of kube-proxy's histogram, in seconds (``pkg/proxy/metrics`` of Kubernetes)."""

MAX_TRIGGERED = 10_000
"""The maximum number of endpoint changes whose time is kept until the next successful sync; the
oldest ones are dropped."""

_CODES = ("200", "503")


class SyncHealth:
    """Records since when changes wait for a sync of sockets and rules; one is due each ``period``.

    ``is_eligible()`` returns whether load balancers may send clients to this node at all.
    """

    def __init__(self, clock: IReactorTime, period: float, is_eligible: Callable[[], bool]) -> None:
        self._clock = clock
        self._period = period
        self._is_eligible = is_eligible
        self._queued: float | None = None
        # The oldest change of the sync that is in progress, or has failed.
        self._syncing: float | None = None
        self._started = time_of_day(clock)
        # The times of the events that caused the waiting changes, and those of the current sync.
        self._triggered: deque[float] = deque(maxlen=MAX_TRIGGERED)
        self._in_sync: deque[float] = deque(maxlen=MAX_TRIGGERED)
        self.programming = Durations(PROGRAMMING_BOUNDS)
        """The time from the event that changed endpoints to the sync that applied it."""
        self.is_draining = False
        """Whether the proxy is about to stop: connections may end, and changes are ignored."""
        self.last_queued: float | None = None
        """The time of the last change, in seconds since 1970."""
        self.last_synced: float | None = None
        """The time of the last successful sync."""

    def queued(self, triggered: Iterable[float] = ()) -> None:
        """Record a change caused by events at these times (seconds since 1970).

        Events from before the start of this process are not measured: they have not waited for it.
        """
        self.last_queued = time_of_day(self._clock)
        self._triggered.extend(each for each in triggered if each > self._started)
        if self._queued is None:
            self._queued = self._clock.seconds()

    def begun(self) -> None:
        """Record the start of a sync for the waiting changes, which still wait if it fails."""
        if self._syncing is None:
            self._syncing = self._clock.seconds() if self._queued is None else self._queued
        self._queued = None
        self._in_sync.extend(self._triggered)
        self._triggered.clear()

    def synced(self) -> None:
        """Record that the sync succeeded."""
        self._syncing = None
        now = self.last_synced = time_of_day(self._clock)
        for each in self._in_sync:
            # The clock of the machine that wrote the time may be ahead.
            self.programming.observe(max(0.0, now - each))
        self._in_sync.clear()

    def waits(self) -> float:
        """Return how long the oldest change has been waiting, in seconds."""
        since = [each for each in (self._syncing, self._queued) if each is not None]
        return self._clock.seconds() - min(since) if since else 0.0

    @property
    def is_alive(self) -> bool:
        """Whether no change has been waiting too long."""
        return self.waits() <= MAX_PERIODS * self._period

    @property
    def is_eligible(self) -> bool:
        """Whether load balancers may send clients to this node at all."""
        return self._is_eligible()

    @property
    def accepts_clients(self) -> bool:
        """Whether load balancers should send clients to this node now."""
        return self.is_alive and self.is_eligible and not self.is_draining

    def body(self) -> bytes:
        """Return the body of both pages, with the fields of kube-proxy's."""
        now = time_of_day(self._clock)
        updated = now if self.is_alive else self.last_synced
        fields = {
            "lastUpdated": "" if updated is None else timestamp(updated),
            "currentTime": timestamp(now),
            "nodeEligible": self.is_eligible,
        }
        return json.dumps(fields).encode() + b"\n"


class HealthPages:
    """The ``pages`` ``/healthz`` and ``/livez``, and their numbers of responses by status code."""

    def __init__(self, health: SyncHealth) -> None:
        self._health = health
        self.healthz: Counter[str] = Counter()
        self.livez: Counter[str] = Counter()
        # For any method.
        self.pages: Pages = {
            "/healthz": lambda request: self._answer(health.accepts_clients, self.healthz),
            "/livez": lambda request: self._answer(health.is_alive, self.livez),
            "/*": lambda request: text("see /healthz and /livez\n", 404),
        }

    def _answer(self, is_healthy: bool, responses: Counter[str]) -> PageResponse:
        status = 200 if is_healthy else 503
        responses[str(status)] += 1
        return PageResponse(b"application/json", self._health.body(), status)


METRICS: tuple[Metric[HealthPages], ...] = (
    counter(
        "kubeproxy_proxy_healthz",
        "Responses of /healthz on --healthz-bind-address, by status.",
        lambda pages: counts_of(_CODES, pages.healthz),
        "code",
    ),
    counter(
        "kubeproxy_proxy_livez",
        "Responses of /livez on --healthz-bind-address, by status.",
        lambda pages: counts_of(_CODES, pages.livez),
        "code",
    ),
)
