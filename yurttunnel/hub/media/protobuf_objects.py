"""Objects in Kubernetes protobuf: the envelope, and the message fields that the hub uses.

The envelope is ``k8s\\0`` and a ``runtime.Unknown``. The field numbers are those of
``generated.proto`` in k8s.io/apimachinery (pkg/runtime, pkg/apis/meta/v1) and k8s.io/api (core/v1).
Each object has its metadata in field 1; each list has its metadata in field 1 and its items in
field 2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from yurttunnel.hub.media.interfaces import Deletion, Item, TypeMeta
from yurttunnel.hub.media.kinds import INITIAL_EVENTS_END, UNKNOWN, is_namespace, is_pod
from yurttunnel.kube.protobuf_fields import (
    VARINT,
    BadBody,
    encode_bytes,
    encode_varint,
    fields,
    tag,
    text,
    varint,
)

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"

MAGIC: Final = b"k8s\0"

TYPE, RAW, CONTENT_ENCODING, CONTENT_TYPE = tag(1), tag(2), tag(3), tag(4)
"""The fields of ``runtime.Unknown``."""

METADATA = tag(1)
_SPEC = tag(2)
_NODE_NAME = tag(10)
_NAME, _NAMESPACE, _VERSION, _LABELS, _ANNOTATIONS = tag(1), tag(3), tag(6), tag(11), tag(12)
_DELETION_TIMESTAMP, _GRACE_SECONDS, _FINALIZERS = tag(9), 10 << 3 | VARINT, tag(14)
_NAMESPACE_FINALIZERS = tag(1)
_SECONDS, _NANOS = 1 << 3 | VARINT, 2 << 3 | VARINT

ENVELOPE_TAIL: Final = encode_bytes(3, b"") + encode_bytes(4, b"")
"""The envelope's fields after the content: no content encoding, and the default media type."""


def decode_type(data: bytes, begin: int, end: int) -> TypeMeta:
    """Parse a ``runtime.TypeMeta``."""
    return TypeMeta(*_two_texts(data, begin, end))


def check_content(field: int, content: bytes) -> None:
    """Raise :class:`BadBody` if the envelope declares content that is not plain protobuf."""
    if field == CONTENT_ENCODING and content:
        raise BadBody("the content of the envelope has an encoding of its own")
    if field == CONTENT_TYPE and content not in (b"", MEDIA_TYPE.encode()):
        raise BadBody("the content of the envelope is of another media type")


def open_envelope(data: bytes) -> tuple[TypeMeta, bytes]:
    """Return the type and the message in an envelope."""
    if not data.startswith(MAGIC):
        raise BadBody("the envelope of Kubernetes is missing")
    type, message = UNKNOWN, b""
    for field, begin, end in fields(data, len(MAGIC), len(data)):
        if field == TYPE:
            type = decode_type(data, begin, end)
        elif field == RAW:
            message = data[begin:end]
        else:
            check_content(field, data[begin:end])
    return type, message


def envelope_head(type: TypeMeta, length: int) -> bytes:
    """Return the start of an envelope for a message of ``length`` bytes, before its tail."""
    meta = encode_bytes(1, type.api_version.encode()) + encode_bytes(2, type.kind.encode())
    return MAGIC + encode_bytes(1, meta) + encode_varint(RAW) + encode_varint(length)


def envelope(type: TypeMeta, message: bytes) -> bytes:
    """Return a message in its envelope."""
    return b"".join((envelope_head(type, len(message)), message, ENVELOPE_TAIL))


def decode_item(body: bytes, type: TypeMeta) -> Item:
    """Parse the fields of a message that the hub uses.

    All encoders of Kubernetes write fields in the order of their numbers, and each message field
    once. So parsing ends after the metadata, or after the spec of a pod.
    """
    item = Item("", "", "", {}, "", body)
    for field, begin, end in fields(body, 0, len(body)):
        if field == METADATA:
            item = _decode_metadata(body, begin, end)
        elif field == _SPEC and is_pod(type.kind, type.api_version):
            return item._replace(node=_decode_node(body, begin, end))
        else:
            break
    return item


def _decode_metadata(body: bytes, start: int, stop: int) -> Item:
    name = namespace = version = ""
    labels: dict[str, str] = {}
    for field, begin, end in fields(body, start, stop):
        if field == _NAME:
            name = text(body, begin, end)
        elif field == _NAMESPACE:
            namespace = text(body, begin, end)
        elif field == _VERSION:
            version = text(body, begin, end)
        elif field == _LABELS:
            key, value = _two_texts(body, begin, end)
            labels[key] = value
    return Item(namespace, name, version, labels, "", body)


def _decode_node(body: bytes, start: int, stop: int) -> str:
    for field, begin, end in fields(body, start, stop):
        if field == _NODE_NAME:
            return text(body, begin, end)
    return ""


def ends_initial_events(body: bytes) -> bool:
    """Return whether a bookmark marks the end of the initial events."""
    return any(
        field == _ANNOTATIONS and _two_texts(body, begin, end) == (INITIAL_EVENTS_END, "true")
        for outer, start, stop in fields(body, 0, len(body))
        if outer == METADATA
        for field, begin, end in fields(body, start, stop)
    )


def deletion_of(body: bytes, type: TypeMeta) -> Deletion:
    """Return the state of an object's deletion."""
    has_begun = is_pending = False
    for outer, start, stop in fields(body, 0, len(body)):
        if outer == METADATA:
            for field, begin, _ in fields(body, start, stop):
                has_begun |= field == _DELETION_TIMESTAMP
                is_pending |= field == _FINALIZERS or (
                    field == _GRACE_SECONDS and varint(body, begin)[0] > 0
                )
        elif outer == _SPEC and has_begun and is_namespace(type):
            is_pending |= any(
                field == _NAMESPACE_FINALIZERS for field, _, _ in fields(body, start, stop)
            )
    return Deletion(has_begun, is_pending)


def bookmark_form(version: str, initial_events_end: bool) -> bytes:
    """Return the message of a bookmark."""
    metadata = encode_bytes(6, version.encode())
    if initial_events_end:
        entry = encode_bytes(1, INITIAL_EVENTS_END.encode()) + encode_bytes(2, b"true")
        metadata += encode_bytes(12, entry)
    return encode_bytes(1, metadata)


def _two_texts(body: bytes, begin: int, end: int) -> tuple[str, str]:
    """Return the fields 1 and 2, such as the key and value of a map entry."""
    first = second = ""
    for field, start, stop in fields(body, begin, end):
        if field == tag(1):
            first = text(body, start, stop)
        elif field == tag(2):
            second = text(body, start, stop)
    return first, second


def time_text(message: bytes, form: Callable[[float], str]) -> str | None:
    """Return a ``metav1.Time`` or ``MicroTime`` in its JSON form, ``None`` if it is invalid.

    ``form`` formats seconds since 1970.
    """
    seconds, nanoseconds = None, 0
    with suppress(BadBody, ValueError, OverflowError, OSError):
        for field, begin, _ in fields(message, 0, len(message)):
            if field == _SECONDS:
                seconds = varint(message, begin)[0]
            elif field == _NANOS:
                nanoseconds = varint(message, begin)[0]
        if seconds is not None:
            return form(seconds + nanoseconds / 1e9)
    return None
