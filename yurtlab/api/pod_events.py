"""Events of pods: what ``kubectl describe`` tells of how it went (``Event`` of core/v1)."""

from __future__ import annotations

from yurtlab.api.store import Object, timestamp

NORMAL = "Normal"
WARNING = "Warning"


def pod_event(
    pod: Object,
    kind: str,
    reason: str,
    message: str,
    seconds: float,
    *,
    component: str,
    host: str = "",
    field: str = "",
) -> Object:
    """Make an event of ``pod``.

    ``kind`` is NORMAL or WARNING, ``reason`` a word in CamelCase; it happened at ``seconds``
    since 1970. ``component`` on ``host`` tells it; ``field`` is the part of the pod that it is
    about.
    """
    metadata = pod["metadata"]
    involved = {
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    if field:
        involved["fieldPath"] = field
    now = timestamp(seconds)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}."},
        "involvedObject": involved,
        "type": kind,
        "reason": reason,
        "message": message,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": component, "host": host},
        "reportingComponent": component,
        "reportingInstance": host,
    }
