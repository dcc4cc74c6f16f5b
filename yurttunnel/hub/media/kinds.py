"""Kinds of lists, watch events, and kinds of objects that need special handling, in all media."""

from __future__ import annotations

from typing import Final

from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.kube.protobuf_fields import BadBody

LIST: Final = "List"
"""The suffix of the kind of a list, after the kind of its items."""

EVENT_TYPES: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"})
"""The types of watch events (pkg/watch of k8s.io/apimachinery)."""

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""The annotation, with the value ``true``, of the bookmark after all initial objects (KEP-3157)."""

STATUS: Final = "Status"
"""The kind of the object that describes a failure or a result."""

UNKNOWN: Final = TypeMeta("", "")
"""The type that is passed for objects that contain their type themselves."""


class NotAList(BadBody):
    """A body that is no list of the requested form, such as a ``Status``."""


def is_pod(kind: str, api_version: str) -> bool:
    """Return whether an object may be a pod; an unknown kind or version is empty."""
    return kind in ("", "Pod") and api_version in ("", "v1")


def is_namespace(type: TypeMeta) -> bool:
    """Return whether an object is a Namespace."""
    return type == ("v1", "Namespace")


def named(item: Item) -> Item:
    """Return an item that has a name; raise :class:`BadBody` for one that has none."""
    if not item.name:
        raise BadBody("an object has no name")
    return item


def item_type(list_type: TypeMeta, transform: str) -> TypeMeta:
    """Return the type of a list's items; raise :class:`NotAList` for any other kind of list."""
    kind = list_type.kind.removesuffix(LIST)
    if kind in ("", list_type.kind):
        raise NotAList(f"kind {list_type.kind[:60]!r} is not a list")
    return checked_type(TypeMeta(list_type.api_version, kind), transform)


def checked_type(type: TypeMeta, transform: str) -> TypeMeta:
    """Return the type of an object that the API has sent.

    Raises :class:`BadBody` for an object without a type, or without the requested transform.
    """
    if not type.kind or not type.api_version:
        raise BadBody("an object has no kind or apiVersion")
    return transformed_type(type, transform)


def transformed_type(type: TypeMeta, transform: str) -> TypeMeta:
    """Return the type of an object; raise :class:`BadBody` if it lacks the requested transform.

    A ``Status`` is accepted in place of any object.
    """
    if transform and type.kind not in (transform, STATUS):
        raise BadBody(f"kind {type.kind[:60]!r} is not the requested {transform}")
    return type
