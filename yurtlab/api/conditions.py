"""Conditions in the status of pods and nodes, with the times of their transitions."""

from __future__ import annotations

from yurtlab.api.store import Object
from yurttunnel.ops.clocks import timestamp


def condition(previous: Object, name: str, now: float, **fields: str) -> Object:
    """Return the condition ``name`` with ``fields``, one of which is its ``status``.

    ``previous`` is the whole previous status, from which the transition time is kept if the
    condition's status is the same; ``now`` is in seconds since 1970.
    """
    known: Object = next(
        (one for one in previous.get("conditions") or () if one["type"] == name), {}
    )
    is_same = known.get("status") == fields["status"]
    since = known.get("lastTransitionTime") if is_same else None
    return {"type": name, **fields, "lastTransitionTime": since or timestamp(now)}
