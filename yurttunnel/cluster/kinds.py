"""The kinds of objects that a middleware can have informers for."""

from __future__ import annotations

from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    NODES,
    PODS,
    SERVICES,
    Object,
    Resource,
)

_RESOURCES = (NODES, PODS, SERVICES, CONFIG_MAPS, ENDPOINT_SLICES)
KINDS = {resource.kind: resource for resource in _RESOURCES}
"""By the kind, as ``Node``."""

_EVERYWHERE = frozenset({NODES, PODS})


def whole(obj: Object) -> Object:
    """Keep an object as the API has it."""
    return obj


def whole_objects(resource: Resource, namespace: str) -> InformerSpec[Object]:
    """Return what is followed: all nodes and pods, else what is in the server's namespace."""
    return InformerSpec(resource, whole, namespace=None if resource in _EVERYWHERE else namespace)
