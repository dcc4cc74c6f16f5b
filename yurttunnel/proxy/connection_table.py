"""The usage of the kernel's conntrack table, in which each connection to a Service has an entry.

When the table is full, the kernel drops packets of new connections, and reports it in its own log
only (``table full, dropping packet``, net/netfilter/nf_conntrack_core.c).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from yurttunnel.metrics import Metric, gauge


class ConnectionTable(NamedTuple):
    """The number of entries, and its limit."""

    entries: int
    limit: int


def connection_table(proc: Path = Path("/proc")) -> ConnectionTable | None:
    """Return the usage in this network namespace; ``None`` while the kernel has no table."""
    settings = proc / "sys/net/netfilter"
    try:
        return ConnectionTable(
            int((settings / "nf_conntrack_count").read_bytes()),
            int((settings / "nf_conntrack_max").read_bytes()),
        )
    except OSError:
        return None


METRICS: tuple[Metric[ConnectionTable], ...] = (
    gauge(
        "yurtproxy_conntrack_entries",
        "Entries in the kernel's connection tracking table, of all programs.",
        lambda table: table.entries,
    ),
    gauge(
        "yurtproxy_conntrack_limit",
        "Maximum number of entries (net.netfilter.nf_conntrack_max); packets of further"
        " connections are dropped.",
        lambda table: table.limit,
    ),
)
