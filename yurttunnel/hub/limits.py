"""How many requests are in hand at a time: what lasts, and what is over soon, each by itself.

With one bound for both, as upstream has it, a node with many watches would answer nothing else any
more; and with one for the node and for pods that have a network of their own, one of those could
keep kubelet out. Of what those pods have together each has as much as it leaves free, so that none
of them keeps the others out.
"""

from __future__ import annotations

import math
from collections import Counter

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.errors import ApiFailure
from yurttunnel.http.places import Places
from yurttunnel.hub.request.requests import HubCall
from yurttunnel.metrics import Durations, Metric, gauge, histogram

TOO_MANY = ApiFailure(429, "too many requests are in flight: try again later", retry_after=1)
"""With the pause that upstream and kube-apiserver tell."""

_EITHER = (False, True)


_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""Upper bounds of the histogram, in seconds: what is kept is answered in the first, mostly."""


class Limits:
    """At most ``max_requests`` that are over soon and ``max_watches`` that last; 0 is no bound.

    Each is for those who ask by loopback, and as many again are for all others together, of one
    address as many as it leaves free.
    """

    def __init__(self, clock: IReactorTime, max_requests: int, max_watches: int) -> None:
        self._clock = clock
        # By whether they last, and whether they are of those who ask by loopback.
        self._places = {(lasting, local): Places(0) for lasting in _EITHER for local in _EITHER}
        self.use(max_requests, max_watches)
        self.in_hand: Counter[str] = Counter()
        """Requests now, by verb."""
        self.rejected = 0
        """How many were too many since the start."""
        self.durations = Durations(_BOUNDS)
        """How long those took that are over soon, from their heads to the ends of their answers."""

    def use(self, max_requests: int, max_watches: int) -> None:
        """Have these count for requests that come from now on."""
        for (lasting, _), places in self._places.items():
            places.most = (max_watches if lasting else max_requests) or math.inf

    def take(self, call: HubCall) -> bool:
        """Count a request until it ends; return whether there was room."""
        request = call.request
        lasting, verb = request.lasts, request.verb
        places = self._places[lasting, call.caller.local]
        holder = call.holder
        if not places.has_one_for(holder):
            self.rejected += 1
            return False
        places.count(holder, 1)
        self.in_hand[verb] += 1
        began = self._clock.seconds()

        def ended(_: object) -> None:
            places.count(holder, -1)
            self.in_hand[verb] -= 1
            if not lasting:
                self.durations.observe(self._clock.seconds() - began)

        call.exchange.on_end(ended)
        return True


METRICS: tuple[Metric[Limits], ...] = (
    gauge(
        "node_yurthub_in_flight_requests_collector",
        "Requests in flight, by verb. Watches last as long as their clients want; a growing"
        " number of other requests waits for a slow API server.",
        lambda limits: sorted(limits.in_hand.items()),
        "verb",
    ),
    gauge(
        "node_yurthub_in_flight_requests_total",
        "Requests in flight, all verbs.",
        lambda limits: limits.in_hand.total(),
    ),
    Metric(
        # Not by counter(), which would append _total to upstream's name.
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
