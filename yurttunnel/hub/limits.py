"""How many requests are in hand at a time: what lasts, and what is over soon, each by itself.

With one bound for both, as upstream has it, a node with many watches would answer nothing else any
more.
"""

from __future__ import annotations

from collections import Counter

from yurttunnel.http.errors import ApiFailure
from yurttunnel.hub.forwarding.forwarding import lasts
from yurttunnel.hub.request.requests import HubCall

TOO_MANY = ApiFailure(429, "too many requests are in hand: try again later", retry_after=1)
"""With the pause that upstream and kube-apiserver tell."""


class Limits:
    """At most ``max_requests`` that are over soon and ``max_watches`` that last; 0 is no bound."""

    def __init__(self, max_requests: int, max_watches: int) -> None:
        self._most = {False: max_requests, True: max_watches}
        self._taken = {False: 0, True: 0}
        self.in_hand: Counter[str] = Counter()
        """Requests now, by verb."""
        self.rejected = 0
        """How many were too many since the start."""

    def take(self, call: HubCall) -> bool:
        """Count a request until it ends; return whether there was room."""
        lasting = lasts(call)
        most = self._most[lasting]
        if 0 < most <= self._taken[lasting]:
            self.rejected += 1
            return False
        verb = call.request.verb
        self._taken[lasting] += 1
        self.in_hand[verb] += 1

        def ended(_: object) -> None:
            self._taken[lasting] -= 1
            self.in_hand[verb] -= 1

        call.exchange.on_end(ended)
        return True
