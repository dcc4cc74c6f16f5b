"""Members of objects that a filter may change, and which requests and objects it is about.

Who reads only has :mod:`yurttunnel.cluster.fields`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from yurttunnel.cluster.fields import text
from yurttunnel.hub.request.requests import ApiRequest

READING = frozenset({"get", "list", "watch"})
FOLLOWING = frozenset({"list", "watch"})


class Name(NamedTuple):
    """The name of an object."""

    namespace: str
    name: str


KUBERNETES = Name("default", "kubernetes")
"""The Service of the API servers, and the EndpointSlice that kube-apiserver itself keeps."""


def member(obj: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object in an object; what is none is an empty one that is nobody's."""
    value = obj.get(key)
    return value if isinstance(value, dict) else {}


def members(obj: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """Go through the objects in a list, and past whatever else is there."""
    value = obj.get(key)
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def name_of(obj: dict[str, Any]) -> Name:
    """Return the name of an object."""
    metadata = member(obj, "metadata")
    return Name(text(metadata.get("namespace")), text(metadata.get("name")))


def asks_for(
    request: ApiRequest,
    group: str,
    resources: Collection[str],
    verbs: Collection[str],
    name: Name | None = None,
    subresources: Collection[str] = ("",),
) -> bool:
    """Return whether a request is for such objects, and may be for the one of that name."""
    resource = request.resource
    return (
        resource is not None
        and resource.group == group
        and resource.name in resources
        and request.verb in verbs
        and request.subresource in subresources
        and (name is None or _may_have(request, name))
    )


def _may_have(request: ApiRequest, name: Name) -> bool:
    return request.namespace in ("", name.namespace) and request.name in ("", name.name)
