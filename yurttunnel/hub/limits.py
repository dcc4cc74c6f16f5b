"""Limits for concurrent requests: one for long-running requests, and one for all others.

With a single limit for both, as in upstream, a node with many watches would reject all other
requests. With a single limit for the node and for pods in networks of their own, one such pod could
lock out the kubelet. Each of these pods may use as much of their common limit as it leaves free, so
no pod locks out the others.
"""

from __future__ import annotations

import math
from collections import Counter

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.errors import ApiFailure
from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.request.requests import HubCall
from yurttunnel.metrics import Durations, Metric, gauge, histogram

TOO_MANY = ApiFailure(429, "too many requests are in flight: try again later", retry_after=1)
"""With the same ``Retry-After`` as upstream and kube-apiserver."""

_EITHER = (False, True)


_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""Upper bounds of the histogram in seconds; most cached responses are in the first bucket."""


class Limits:
    """At most ``max_requests`` short requests and ``max_watches`` long-running ones; 0 is no limit.

    The limits apply to clients on loopback, and again to all others together, each address of which
    may use as much as it leaves free.
    """

    def __init__(self, clock: IReactorTime, max_requests: int, max_watches: int) -> None:
        self._now = clock.seconds
        # Keys: whether requests are long-running, and whether their clients use loopback.
        self._places = {
            (long_running, local): SharedLimit(0) for long_running in _EITHER for local in _EITHER
        }
        self.set_limits(max_requests, max_watches)
        self.in_flight: Counter[str] = Counter()
        """Current requests by verb."""
        self.rejected = 0
        """The number of requests rejected since the start."""
        self.durations = Durations(_BOUNDS)
        """The durations of short requests, from the request's head to the end of the response."""

    def set_limits(self, max_requests: int, max_watches: int) -> None:
        """Change the limits for new requests."""
        for (long_running, _), places in self._places.items():
            places.maximum = (max_watches if long_running else max_requests) or math.inf

    def admit(self, call: HubCall) -> bool:
        """Count a request until it ends; return ``False`` if the limit is reached."""
        request = call.request
        long_running, verb = request.long_running, request.verb
        places = self._places[long_running, call.caller.local]
        share_holder = call.share_holder
        if not places.take(share_holder):
            self.rejected += 1
            return False
        self.in_flight[verb] += 1
        began = self._now()

        def ended(_: object) -> None:
            places.add(share_holder, -1)
            self.in_flight[verb] -= 1
            if not long_running:
                self.durations.observe(self._now() - began)

        call.exchange.on_end(ended)
        return True


METRICS: tuple[Metric[Limits], ...] = (
    gauge(
        "node_yurthub_in_flight_requests_collector",
        "Requests in flight, by verb. Watches last as long as their clients want; a growing"
        " number of other requests waits for a slow API server.",
        lambda limits: sorted(limits.in_flight.items()),
        "verb",
    ),
    gauge(
        "node_yurthub_in_flight_requests_total",
        "Requests in flight, all verbs.",
        lambda limits: limits.in_flight.total(),
    ),
    Metric(
        # Not with counter(), which would append _total to upstream's name.
        "counter",
        "node_yurthub_rejected_requests_counter",
        "Requests rejected with 429, because --max-requests-in-flight or --max-watches was"
        " reached.",
        lambda limits: limits.rejected,
    ),
    histogram(
        "yurthub_request_duration_seconds",
        "Duration of requests from the head of the request to the end of the response, from the"
        " API or the cache; without watches, followed logs and upgrades. Upstream's"
        " proxy_latency_collector is in nanoseconds.",
        lambda limits: limits.durations,
    ),
)
