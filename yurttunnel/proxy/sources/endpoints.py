"""The kind Endpoints, in which the endpoints of a Service were before Kubernetes 1.21."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.kube.resources import Object
from yurttunnel.proxy.state.endpoint_slices import SERVICE_NAME


def as_endpoint_slices(endpoints: Object) -> Iterator[Object]:
    """Go through the EndpointSlices that say the same: one a subset and family of addresses."""
    metadata = mapping(endpoints.get("metadata"))
    name = text(metadata.get("name"))
    for number, subset in enumerate(objects(endpoints.get("subsets"))):
        for version in (4, 6):
            yield {
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": metadata.get("namespace"),
                    "name": f"{name}-{number}-ipv{version}",
                    "labels": {**mapping(metadata.get("labels")), SERVICE_NAME: name},
                },
                "addressType": f"IPv{version}",
                "ports": subset.get("ports"),
                "endpoints": [
                    each for each in _endpoints(subset) if _version(each["addresses"][0]) == version
                ],
            }


def _endpoints(subset: Mapping[str, Any]) -> Iterator[Object]:
    for key, ready in (("addresses", True), ("notReadyAddresses", False)):
        for each in objects(subset.get(key)):
            yield {
                "addresses": [text(each.get("ip"))],
                "conditions": {"ready": ready},
                "nodeName": each.get("nodeName"),
            }


def _version(address: str) -> int:
    return 6 if ":" in address else 4
