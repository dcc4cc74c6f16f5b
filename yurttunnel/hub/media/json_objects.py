"""Objects in JSON: the fields that the hub uses, and their form as items of lists."""

from __future__ import annotations

import re

import msgspec

from yurttunnel.hub.media.interfaces import Deletion, Item, TypeMeta
from yurttunnel.hub.media.json_text import spaced, text_form
from yurttunnel.hub.media.kinds import INITIAL_EVENTS_END, UNKNOWN, is_namespace, is_pod

# The type members at the start of an object; all servers write them without escapes.
_TYPE_MEMBERS = re.compile(spaced(rb'\{(?:_"(?:kind|apiVersion)"_:_"[^"\\]*"_(?:,_(?=")|(?=\})))+'))
_EMPTY = re.compile(spaced(rb"\{_\}"))


class ObjectMeta(msgspec.Struct, gc=False, rename="camel"):
    """The metadata fields that the hub uses."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class Object(msgspec.Struct, gc=False, rename="camel"):
    """The object fields that the hub uses."""

    kind: str = ""
    api_version: str = ""
    metadata: ObjectMeta | None = None
    spec: msgspec.Raw = msgspec.Raw()


class _PodSpec(msgspec.Struct, gc=False, rename="camel"):
    node_name: str = ""


class _Annotated(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _TerminatingMeta(msgspec.Struct, rename="camel"):
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class _Terminating(msgspec.Struct):
    metadata: _TerminatingMeta | None = None
    spec: msgspec.Raw = msgspec.Raw()


class _NamespaceSpec(msgspec.Struct):
    finalizers: list[str] | None = None


class _Bookmark(msgspec.Struct):
    metadata: _Annotated | None = None


_decode_object = msgspec.json.Decoder(Object).decode
_decode_pod_spec = msgspec.json.Decoder(_PodSpec | None).decode
_decode_terminating = msgspec.json.Decoder(_Terminating).decode
_decode_namespace_spec = msgspec.json.Decoder(_NamespaceSpec | None).decode
_decode_bookmark = msgspec.json.Decoder(_Bookmark).decode


def decode_object(body: bytes, type: TypeMeta = UNKNOWN) -> tuple[TypeMeta, Item]:
    """Parse an object; raise :class:`msgspec.DecodeError`.

    ``type`` is the known type of a list's item, because items do not have it. Only the ``spec`` of
    pods is parsed.
    """
    found = _decode_object(body)
    meta = found.metadata or ObjectMeta()
    node = ""
    if found.spec and is_pod(found.kind or type.kind, found.api_version or type.api_version):
        spec = _decode_pod_spec(found.spec)
        node = spec.node_name if spec else ""
    return TypeMeta(found.api_version, found.kind), Item(
        meta.namespace, meta.name, meta.resource_version, meta.labels or {}, node, item_form(body)
    )


def ends_initial_events(body: bytes) -> bool:
    """Return whether a bookmark marks the end of the initial events."""
    meta = _decode_bookmark(body).metadata
    annotations = (meta and meta.annotations) or {}
    return annotations.get(INITIAL_EVENTS_END) == "true"


def deletion_of(body: bytes, type: TypeMeta) -> Deletion:
    """Return the state of an object's deletion."""
    found = _decode_terminating(body)
    meta = found.metadata
    if meta is None:
        return Deletion(False, False)
    has_begun = bool(meta.deletion_timestamp)
    if has_begun and found.spec and is_namespace(type):
        spec = _decode_namespace_spec(found.spec)
        if spec and spec.finalizers:
            return Deletion(True, True)
    return Deletion(has_begun, bool(meta.deletion_grace_period_seconds or meta.finalizers))


def item_form(body: bytes) -> bytes:
    """Return an object without the type members at its start."""
    found = _TYPE_MEMBERS.match(body)
    return b"{" + body[found.end() :] if found else body


def object_form(type: TypeMeta, body: bytes) -> bytes:
    """Return an item with the type members that it lacks."""
    own = _decode_object(body)
    members = b""
    if not own.kind:
        members = b'"kind":' + text_form(type.kind) + b","
    if not own.api_version:
        members += b'"apiVersion":' + text_form(type.api_version) + b","
    if _EMPTY.fullmatch(body):
        members = members[:-1]
    return b"{" + members + body[1:]
