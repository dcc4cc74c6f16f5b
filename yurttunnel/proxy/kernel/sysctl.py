"""Settings of this machine's network, which are those of the thread's namespace (proc(5))."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/proc/sys/net")

BE_LIBERAL = "netfilter/nf_conntrack_tcp_be_liberal"
"""Whether packets out of window belong to their connections all the same."""


def is_on(name: str) -> bool | None:
    """Return whether a setting is other than 0; ``None`` where this kernel has none of the name."""
    try:
        return int((ROOT / name).read_text()) != 0
    except (OSError, ValueError):
        return None
