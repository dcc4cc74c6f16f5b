"""Conditions, which tell in a status what is true of a pod or a node, and since when."""

from __future__ import annotations

from yurtlab.api.store import Object
from yurttunnel.ops.clocks import timestamp


def condition(previous: Object, name: str, now: float, **fields: str) -> Object:
    """Return the condition ``name`` with ``fields``, of which one is its ``status``.

    ``previous`` is the whole status before it, which has since when it is so; ``now`` is in seconds
    since 1970.
    """
    known: Object = next(
        (one for one in previous.get("conditions") or () if one["type"] == name), {}
    )
    is_same = known.get("status") == fields["status"]
    since = known.get("lastTransitionTime") if is_same else None
    return {"type": name, **fields, "lastTransitionTime": since or timestamp(now)}
