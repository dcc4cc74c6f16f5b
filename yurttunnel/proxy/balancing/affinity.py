"""Which endpoint a client has had (``sessionAffinity: ClientIP``)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from yurttunnel.proxy.balancing.endpoint_state import EndpointState

MOST = 65_536
"""Records of one virtual service. Where there are more clients, those that have not come for
longest lose theirs."""

_SWEPT = 2
"""Records that are dropped at most for one that is made, if they are too old: one more than what
comes, so that all of them go, and no call takes long."""


class AffinityRecords:
    """The endpoints of clients for ``ttl`` seconds after each one's last connection.

    ``ttl`` may be changed, and then is that of all records. A record of an endpoint that has been
    removed is none, even if an endpoint with the same address comes back.
    """

    def __init__(self, ttl: float, seconds: Callable[[], float], most: int = MOST) -> None:
        self.ttl = ttl
        self._seconds = seconds
        self._most = most
        # In the order of their last use.
        self._records: OrderedDict[str, tuple[EndpointState, float]] = OrderedDict()

    def get(self, client: str) -> EndpointState | None:
        """Return the endpoint of ``client``, if it has one."""
        record = self._records.get(client)
        if record is None:
            return None
        state, used = record
        return None if state.removed or used + self.ttl <= self._seconds() else state

    def put(self, client: str, state: EndpointState) -> None:
        """Note that ``client`` uses an endpoint now."""
        records, now = self._records, self._seconds()
        records[client] = state, now
        records.move_to_end(client)
        for oldest in list(islice(records, _SWEPT)):
            if len(records) <= self._most and now < records[oldest][1] + self.ttl:
                return
            del records[oldest]

    def drop(self, client: str) -> None:
        """Forget the endpoint of ``client``."""
        self._records.pop(client, None)
