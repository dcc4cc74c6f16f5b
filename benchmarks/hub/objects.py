"""The objects of the API: a node and a number of pods, in files for its process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.hub import protobuf
from tests.e2e.cluster import large_cluster

NODE = "edge-1"

VERSION = "@VERSION@@"
"""The placeholder for the version of a pod; ``versionMark`` of ``driver/api.go``."""

MARK = "benchmark.pod"
"""A text that each pod contains once."""

Encoder = Callable[[dict[str, Any]], bytes]


def write(directory: Path, pods: int) -> str:
    """Write ``node.json``, ``pods.json`` and ``pods.protobuf``; return the node's JSON."""
    text = _json(node()).decode()
    (directory / "node.json").write_text(text)
    encoders: dict[str, Encoder] = {
        "pods.json": _json,
        "pods.protobuf": lambda pod: protobuf.message("Pod", pod),
    }
    for name, encode in encoders.items():
        with (directory / name).open("wb") as output:
            output.writelines(_framed(encode(pod(number)) for number in range(pods)))
    return text


def _framed(items: Iterable[bytes]) -> Iterable[bytes]:
    for item in items:
        yield len(item).to_bytes(4, "big") + item


def node() -> dict[str, Any]:
    """Return the node, about 1 KB of JSON."""
    made = large_cluster.node(1)
    del made["metadata"]["managedFields"], made["status"]["images"], made["status"]["allocatable"]
    made["status"]["conditions"] = made["status"]["conditions"][-2:]
    made["metadata"]["name"] = NODE
    return made


def pod(number: int) -> dict[str, Any]:
    """Return a pod of the node as an item of a list, about 5.7 KB of JSON."""
    made = large_cluster.pod(number)
    # In a list, API servers omit the type of the items.
    del made["apiVersion"], made["kind"]
    made["metadata"]["resourceVersion"] = VERSION
    made["metadata"]["annotations"]["description"] = f"{MARK} {'of a shop ' * 24}"
    made["spec"]["nodeName"] = NODE
    return made


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
