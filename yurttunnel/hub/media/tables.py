"""Tables and metadata built from complete objects, for clients that request them offline.

Such a Table has only the name and the age: the other columns of a kind are known only to the API.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec

from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.hub.media.json_shapes import PARTIAL, TABLE
from yurttunnel.hub.media.protobuf_objects import METADATA, time_text
from yurttunnel.hub.request.requests import Form
from yurttunnel.kube.durations import since
from yurttunnel.kube.protobuf_fields import encode_bytes, fields, tag, text
from yurttunnel.ops.clocks import timestamp

COLUMNS: Final = msgspec.json.encode(
    [
        {
            "name": name,
            "type": "string",
            "format": format,
            "description": description,
            "priority": 0,
        }
        for name, format, description in (
            ("Name", "name", "The name, unique within a namespace."),
            ("Age", "", "How long ago the object was created."),
        )
    ]
)

_UID, _CREATED = tag(5), tag(8)


class Conversion(NamedTuple):
    """A conversion of complete items to another form.

    ``type`` is the resulting type, ``columns`` are the columns of a Table. ``body(item)`` returns
    the converted item.
    """

    type: TypeMeta
    columns: bytes
    body: Callable[[Item], bytes]


def conversion(stored: Form, wanted: Form, now: float) -> Conversion | None:
    """Return the conversion from one form to another, ``None`` if it is not possible.

    ``now`` is in seconds since 1970, for ages. Metadata keep the media type in which they are
    cached, because they have more fields than are parsed here.
    """
    if stored.transform or wanted.transform not in (TABLE, PARTIAL):
        return None
    type = TypeMeta(f"meta.k8s.io/{wanted.version}", wanted.transform)
    if wanted.transform == PARTIAL:
        if stored.encoding != wanted.encoding:
            return None
        return Conversion(type, b"", _PARTIAL[stored.encoding])
    if wanted.encoding != "json":
        return None
    metadata_of = _METADATA[stored.encoding]
    return Conversion(type, COLUMNS, lambda item: _row(item, metadata_of(item), type, now))


class _Object(msgspec.Struct, gc=False):
    metadata: msgspec.Raw


class _Created(msgspec.Struct, gc=False, rename="camel"):
    # Any type: an invalid timestamp results in an unknown age, not in a failed list.
    creation_timestamp: Any = None


_decode_object = msgspec.json.Decoder(_Object).decode
_decode_created = msgspec.json.Decoder(_Created).decode


def _row(item: Item, metadata: bytes, type: TypeMeta, now: float) -> bytes:
    age = since(_decode_created(metadata).creation_timestamp, now)
    cells = msgspec.json.encode([item.name, age])
    return b'{"cells":%b,"object":{"kind":"%b","apiVersion":"%b","metadata":%b}}' % (
        cells,
        PARTIAL.encode(),
        type.api_version.encode(),
        metadata,
    )


def _json_metadata(item: Item) -> bytes:
    return bytes(_decode_object(item.body).metadata)


def _partial_json(item: Item) -> bytes:
    return b'{"metadata":%b}' % _json_metadata(item)


def _partial_protobuf(item: Item) -> bytes:
    return b"".join(encode_bytes(1, metadata) for metadata in _messages(item.body))


def _protobuf_metadata(item: Item) -> bytes:
    """Return the metadata fields that a Table needs, from protobuf in JSON."""
    found: dict[str, object] = {
        "name": item.name,
        "namespace": item.namespace,
        "resourceVersion": item.version,
        "labels": item.labels,
    }
    for metadata in _messages(item.body):
        for field, begin, end in fields(metadata, 0, len(metadata)):
            if field == _UID:
                found["uid"] = text(metadata, begin, end)
            elif field == _CREATED:
                found["creationTimestamp"] = time_text(metadata[begin:end], timestamp)
    return msgspec.json.encode({name: value for name, value in found.items() if value})


def _messages(body: bytes) -> list[bytes]:
    """Return the metadata fields, which come first; the rest is not searched."""
    first = takewhile(lambda one: one[0] == METADATA, fields(body, 0, len(body)))
    return [body[begin:end] for _, begin, end in first]


_PARTIAL: Final = {"json": _partial_json, "protobuf": _partial_protobuf}
_METADATA: Final = {"json": _json_metadata, "protobuf": _protobuf_metadata}
