"""Which endpoint a client has had (``sessionAffinity: ClientIP``)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from yurttunnel.proxy.balancing.endpoint_state import EndpointState

MAX_RECORDS = 65_536
"""The maximum number of records of one virtual service; the least recently used are dropped."""

_EXPIRED_PER_PUT = 2
"""The maximum number of expired records dropped for each new one: one more than are added, so that
all of them are removed over time, and no call takes long."""


class AffinityRecords:
    """Records the endpoints of clients for ``ttl`` seconds after each one's last connection.

    A change of ``ttl`` applies to all records. A record of a removed endpoint is invalid, even if
    an endpoint with the same address is added again.
    """

    def __init__(
        self, ttl: float, seconds: Callable[[], float], max_records: int = MAX_RECORDS
    ) -> None:
        self.ttl = ttl
        self._seconds = seconds
        self._max_records = max_records
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
        """Record that ``client`` uses an endpoint now."""
        records, now = self._records, self._seconds()
        records[client] = state, now
        records.move_to_end(client)
        for oldest in list(islice(records, _EXPIRED_PER_PUT)):
            if len(records) <= self._max_records and now < records[oldest][1] + self.ttl:
                return
            del records[oldest]

    def drop(self, client: str) -> None:
        """Drop the record of ``client``."""
        self._records.pop(client, None)
