"""Bodies as kube-apiserver writes them: ``python -m tests.hub.media.goldens`` writes the files.

They have the same objects in JSON and in protobuf, and both must give the same results.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from tests.hub.media.protobuf_encoding import body, frame

DIRECTORY = Path(__file__).with_name("goldens")

PODS = [
    {
        "metadata": {
            "name": "web-1",
            "generateName": "web-",
            "namespace": "shop",
            "uid": "0f5e6f6a-7c43-4d0e-8e5e-4c58a4f2a111",
            "resourceVersion": "1007",
            "creationTimestamp": {"seconds": 1795428000},
            "labels": {"app": "web", "zone": ""},
            "annotations": {"note": 'quotes " and },{"metadata" in a text'},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"}],
        },
        "spec": {
            "containers": [
                {
                    "name": "web",
                    "image": "web:1",
                    "env": [{"name": "A", "value": "x" * 200}, {"name": "B", "value": "{[\\"}],
                }
            ],
            "nodeSelector": {"zone": "north"},
            "nodeName": "edge-1",
        },
        "status": {"phase": "Running", "podIP": "10.0.0.7"},
    },
    {
        "metadata": {"name": "späti", "namespace": "shop", "resourceVersion": "1008"},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Pending"},
        "ofTheFuture": "a field that this version does not know",
    },
    {
        "metadata": {"name": "agent", "namespace": "kube-system", "resourceVersion": "1009"},
        "spec": {"containers": [], "nodeName": "edge-2"},
    },
]
POD_LIST = {"metadata": {"resourceVersion": "1010"}, "items": PODS}
PAGE = {
    "metadata": {"resourceVersion": "1010", "continue": "bmV4dA", "remainingItemCount": 4501},
    "items": [{"metadata": {"name": "settings"}, "data": {"key": "value"}}],
}
METADATA = {
    "metadata": {"resourceVersion": "1010"},
    "items": [{"metadata": pod["metadata"]} for pod in PODS],
}
BOOKMARK = {
    "metadata": {
        "resourceVersion": "1011",
        "annotations": {"k8s.io/initial-events-end": "true"},
    }
}
STATUS = {"status": "Failure", "message": "too old", "reason": "Expired", "code": 410}
EVENTS = [
    ("ADDED", "Pod", PODS[0]),
    ("MODIFIED", "Pod", PODS[1]),
    ("DELETED", "Pod", PODS[2]),
    ("BOOKMARK", "Pod", BOOKMARK),
    ("BOOKMARK", "Pod", {"metadata": {"resourceVersion": "1012"}}),
    ("ERROR", "Status", STATUS),
]
META = "meta.k8s.io/v1"
LISTS = {
    "pods": ("PodList", "v1", POD_LIST),
    "page": ("ConfigMapList", "v1", PAGE),
    "empty": ("PodList", "v1", {"metadata": {"resourceVersion": "1010"}, "items": []}),
    "partial": ("PartialObjectMetadataList", META, METADATA),
}


def compact(value: Any) -> bytes:
    """Encode JSON as the API does."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def json_object(kind: str, value: dict[str, Any], api_version: str = "v1") -> Any:
    """Return the JSON form of an object."""
    return {"kind": kind, "apiVersion": api_version, **_with_times(value)}


def _with_times(value: Any) -> Any:
    """Return a value with times in their JSON form."""
    if isinstance(value, list):
        return [_with_times(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "seconds" in value:
        return f"{datetime.datetime.fromtimestamp(value['seconds'], datetime.UTC):%FT%TZ}"
    return {name: _with_times(one) for name, one in value.items()}


def goldens() -> dict[str, bytes]:
    """Return the content of each file."""
    files = {}
    for name, (kind, version, value) in LISTS.items():
        files[f"{name}.json"] = compact(json_object(kind, value, version)) + b"\n"
        files[f"{name}.pb"] = body(kind, value, version)
    files["watch.json"] = b"".join(
        compact({"type": event, "object": json_object(kind, value)}) + b"\n"
        for event, kind, value in EVENTS
    )
    files["watch.pb"] = b"".join(frame(event, kind, value) for event, kind, value in EVENTS)
    return files


def golden(name: str) -> bytes:
    """Return the stored content of a file."""
    return (DIRECTORY / name).read_bytes()


if __name__ == "__main__":
    for file, content in goldens().items():
        (DIRECTORY / file).write_bytes(content)
