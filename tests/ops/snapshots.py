"""Session snapshots for the tests of this package."""

from __future__ import annotations

import dataclasses
import datetime

from yurttunnel.tunnel.statistics import SessionSnapshot

SINCE = datetime.datetime(2026, 11, 21, 3, 4, 5, tzinfo=datetime.UTC)
NOT_AFTER = datetime.datetime(2027, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)

SNAPSHOT = SessionSnapshot(
    node="edge-1",
    session_id="5e55",
    since=SINCE,
    connected=True,
    waits_for=None,
    round_trip=0.0625,
    streams=3,
    bytes_received=1000,
    bytes_sent=2000,
    unacknowledged=500,
    resumptions=4,
    version="0.1.0",
    address="192.0.2.7:40000",
    certificate_not_after=NOT_AFTER,
    streams_by_entry={"connect": 2, "forward": 1},
)


def snapshot(**changes: object) -> SessionSnapshot:
    """Return a snapshot of a session of edge-1, with ``changes``."""
    return dataclasses.replace(SNAPSHOT, **changes)
