"""Helpers of filters: access to members of objects, and matching of requests and objects.

Code that only reads objects uses :mod:`yurttunnel.cluster.fields`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from yurttunnel.cluster.fields import text
from yurttunnel.hub.request.requests import ApiRequest

READ_VERBS = frozenset({"get", "list", "watch"})
LIST_VERBS = frozenset({"list", "watch"})


class Name(NamedTuple):
    """The namespace and name of an object."""

    namespace: str
    name: str


KUBERNETES = Name("default", "kubernetes")
"""The Service of the API servers, and the EndpointSlice that kube-apiserver maintains."""


def member(obj: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a member that is an object; if it is not one, return a new empty object."""
    value = obj.get(key)
    return value if isinstance(value, dict) else {}


def members(obj: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a list, and skip all other items."""
    value = obj.get(key)
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def name_of(obj: dict[str, Any]) -> Name:
    """Return the name of an object."""
    metadata = member(obj, "metadata")
    return Name(text(metadata.get("namespace")), text(metadata.get("name")))


def matches(
    request: ApiRequest,
    group: str,
    resources: Collection[str],
    verbs: Collection[str],
    name: Name | None = None,
    subresources: Collection[str] = ("",),
) -> bool:
    """Return whether a request is for such resources, and may include the object with that name."""
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
