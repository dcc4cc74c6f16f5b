"""Whether this node should be sent clients of Services: what load balancers and kubelets ask.

The pages are those of kube-proxy (``pkg/proxy/healthcheck/proxy_health.go`` of Kubernetes): on
``/healthz`` 503 also means that the Node is about to go, on ``/livez`` it does not. With the proxy,
which has no drain there, it is the same.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IReactorTime

from yurttunnel.metrics import Durations, Metric, counter, counts_of
from yurttunnel.ops.clocks import time_of_day, timestamp
from yurttunnel.ops.http_site import Answer, Pages, text

PERIODS = 2
"""How many sync periods a change may wait, as for kube-proxy."""

PROGRAMMING_BOUNDS = (0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
"""Seconds; the buckets of kube-proxy's histogram (``pkg/proxy/metrics`` of Kubernetes)."""

MOST_TRIGGERED = 10_000
"""Changes of endpoints whose time is kept until a sync goes well; the oldest ones go."""

_CODES = ("200", "503")


class SyncHealth:
    """Since when changes wait for a sync of sockets and rules, of which one comes each ``period``.

    ``is_eligible()`` says whether load balancers are to send clients to this node at all.
    """

    def __init__(self, clock: IReactorTime, period: float, is_eligible: Callable[[], bool]) -> None:
        self._clock = clock
        self._period = period
        self._is_eligible = is_eligible
        self._queued: float | None = None
        # Of what the sync takes up that is under way, or has failed.
        self._taken: float | None = None
        self._started = time_of_day(clock)
        # When what has led to changes came: of those that wait, and of those that were taken up.
        self._triggered: deque[float] = deque(maxlen=MOST_TRIGGERED)
        self._in_sync: deque[float] = deque(maxlen=MOST_TRIGGERED)
        self.programming = Durations(PROGRAMMING_BOUNDS)
        """From what has led to a change of endpoints to the sync that has made it count."""
        self.drains = False
        """Whether the proxy is about to stop: what is under way may end, and changes are not
        followed any more.
        """
        self.last_queued: float | None = None
        """When a change came, in seconds since 1970."""
        self.last_synced: float | None = None
        """When a sync went well."""

    def queued(self, triggered: Iterable[float] = ()) -> None:
        """Note that something has changed, for what came at these times (seconds since 1970).

        What came before this process has not waited for it.
        """
        self.last_queued = time_of_day(self._clock)
        self._triggered.extend(each for each in triggered if each > self._started)
        if self._queued is None:
            self._queued = self._clock.seconds()

    def begun(self) -> None:
        """Note that a sync takes up what waits; if it fails that goes on to wait."""
        if self._taken is None:
            self._taken = self._clock.seconds() if self._queued is None else self._queued
        self._queued = None
        self._in_sync.extend(self._triggered)
        self._triggered.clear()

    def synced(self) -> None:
        """Note that it went well."""
        self._taken = None
        now = self.last_synced = time_of_day(self._clock)
        for each in self._in_sync:
            # The clock of whoever wrote it may be ahead.
            self.programming.observe(max(0.0, now - each))
        self._in_sync.clear()

    def waits(self) -> float:
        """Return for how many seconds the oldest change has been waiting."""
        since = [each for each in (self._taken, self._queued) if each is not None]
        return self._clock.seconds() - min(since) if since else 0.0

    @property
    def is_alive(self) -> bool:
        """Whether no change has been waiting for too long."""
        return self.waits() <= PERIODS * self._period

    @property
    def is_eligible(self) -> bool:
        """Whether load balancers are to send clients here."""
        return self._is_eligible()

    @property
    def takes_clients(self) -> bool:
        """Whether load balancers are to send clients here now."""
        return self.is_alive and self.is_eligible and not self.drains

    def body(self) -> bytes:
        """Return what the pages show: the fields of kube-proxy's."""
        now = time_of_day(self._clock)
        updated = now if self.is_alive else self.last_synced
        fields = {
            "lastUpdated": "" if updated is None else timestamp(updated),
            "currentTime": timestamp(now),
            "nodeEligible": self.is_eligible,
        }
        return json.dumps(fields).encode() + b"\n"


class HealthPages:
    """The ``pages`` ``/healthz`` and ``/livez``, with what they have answered, by its codes."""

    def __init__(self, health: SyncHealth) -> None:
        self._health = health
        self.healthz: Counter[str] = Counter()
        self.livez: Counter[str] = Counter()
        # Whatever the method is.
        self.pages: Pages = {
            "/healthz": lambda request: self._answer(health.takes_clients, self.healthz),
            "/livez": lambda request: self._answer(health.is_alive, self.livez),
            "/*": lambda request: text("see /healthz and /livez\n", 404),
        }

    def _answer(self, is_well: bool, answered: Counter[str]) -> Answer:
        status = 200 if is_well else 503
        answered[str(status)] += 1
        return Answer(b"application/json", self._health.body(), status)


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
