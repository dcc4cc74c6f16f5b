"""What is the same in all media: kinds of lists, and what is looked at."""

from __future__ import annotations

from typing import Final

from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.kube.protobuf_fields import BadBody

LIST: Final = "List"
"""What follows the kind of its items in the kind of a list."""

EVENT_TYPES: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"})
"""What a watch tells (pkg/watch of k8s.io/apimachinery)."""

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""The annotation, ``true``, of the bookmark behind all objects that there were (KEP-3157)."""

STATUS: Final = "Status"
"""The kind of what says why something failed, or what became of it."""

UNKNOWN: Final = TypeMeta("", "")
"""What is known of the type of an object that says it itself."""


def is_pod(kind: str, api_version: str) -> bool:
    """Return whether an object is a pod, as far as it is known: what is unknown is empty."""
    return kind in ("", "Pod") and api_version in ("", "v1")


def is_namespace(type: TypeMeta) -> bool:
    """Return whether an object is a Namespace."""
    return type == ("v1", "Namespace")


def named(item: Item) -> Item:
    """Return an item that has a name; others cannot be found again and are :class:`BadBody`."""
    if not item.name:
        raise BadBody("an object has no name")
    return item


def item_type(list_type: TypeMeta, transform: str) -> TypeMeta:
    """Return the type of a list's items; raises :class:`BadBody` for what is no such list."""
    kind = list_type.kind.removesuffix(LIST)
    if kind in ("", list_type.kind):
        raise BadBody(f"kind {list_type.kind[:60]!r} is no list")
    return checked_type(TypeMeta(list_type.api_version, kind), transform)


def checked_type(type: TypeMeta, transform: str) -> TypeMeta:
    """Return the type of an object that the API sends.

    Raises :class:`BadBody` for what does not say its type or was not transformed as it was asked
    for.
    """
    if not type.kind or not type.api_version:
        raise BadBody("an object does not say what it is")
    return transformed_type(type, transform)


def transformed_type(type: TypeMeta, transform: str) -> TypeMeta:
    """Return the type of an object; raises :class:`BadBody` for what was not transformed so.

    A ``Status`` may come in place of any object.
    """
    if transform and type.kind not in (transform, STATUS):
        raise BadBody(f"kind {type.kind[:60]!r} came where {transform} was asked for")
    return type
