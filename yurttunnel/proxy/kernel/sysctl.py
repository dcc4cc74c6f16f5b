"""Network settings of the thread's network namespace (proc(5))."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/proc/sys/net")

BE_LIBERAL = "netfilter/nf_conntrack_tcp_be_liberal"
"""Whether out-of-window packets belong to their connections."""


def is_on(name: str) -> bool | None:
    """Return whether a setting is not 0; ``None`` if this kernel does not have it."""
    try:
        return int((ROOT / name).read_text()) != 0
    except (OSError, ValueError):
        return None
