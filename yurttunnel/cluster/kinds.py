"""The kinds of objects for which middleware can have informers."""

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
"""Resources by kind, such as ``Node``."""

_EVERYWHERE = frozenset({NODES, PODS})


def whole(obj: Object) -> Object:
    """Return an object unchanged."""
    return obj


def whole_objects(resource: Resource, namespace: str) -> InformerSpec[Object]:
    """Return the specification for all nodes or pods, or objects in the server's namespace."""
    return InformerSpec(resource, whole, namespace=None if resource in _EVERYWHERE else namespace)
