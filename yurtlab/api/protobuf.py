"""Request bodies in the binary form of Kubernetes, which kubectl since 1.32 sends in some cases.

Where it has typed clients (``kubectl create namespace``, ``create configmap``, ``drain``...) it
sends protocol buffers without a fallback. Few kinds are sent so; their messages are in
``messages.json``, with the field numbers of ``generated.proto`` in k8s.io/api and
k8s.io/apimachinery. Responses are JSON, which all clients accept.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yurtlab.api import errors
from yurttunnel.kube.protobuf_fields import BYTES, VARINT, BadBody, fields, varint
from yurttunnel.ops.clocks import timestamp

PROTOBUF = "application/vnd.kubernetes.protobuf"
"""The media type."""

_MAGIC = b"k8s\x00"

# A name and then, unless it is a string, a type; [] is repeated, ? is a pointer in Go.
_FIELD = re.compile(r"(?P<name>\w+)(?:: (?P<type>\w+|map<\w+>))?(?P<repeated>\[\])?(?P<kept>\?)?")


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its name in JSON, and its type, which may be another message.

    Go encodes values that are not set as zeros, which JSON omits. ``kept`` fields are pointers in
    Go, which are encoded only when set. ``values`` is the type of the values in a map.
    """

    name: str
    type: str
    repeated: bool
    kept: bool
    values: str


def _field(text: str) -> Field:
    found = _FIELD.fullmatch(text)
    assert found is not None, text
    type_ = found["type"] or "string"
    values = type_[4:-1] if type_.startswith("map<") else ""
    return Field(found["name"], type_, bool(found["repeated"]), bool(found["kept"]), values)


MESSAGES: dict[str, dict[int, Field]] = {
    name: {int(number): _field(text) for number, text in fields.items()}
    for name, fields in json.loads(Path(__file__).with_name("messages.json").read_bytes()).items()
}
"""The messages that clients send, with their fields."""


def decode_protobuf(data: bytes) -> dict[str, Any]:
    """Decode a body; raise BadRequest, or UnsupportedMediaType for an unknown kind."""
    try:
        if not data.startswith(_MAGIC):
            raise BadBody("no body of Kubernetes")
        unknown = _message("Unknown", data[len(_MAGIC) :])
        meta = unknown.get("typeMeta", {})
        if meta.get("kind") not in MESSAGES:
            text = (
                f"{meta.get('kind')} is not accepted as {PROTOBUF}; send application/json, as"
                " kubectl run, create -f and apply do"
            )
            raise errors.ApiError(415, "UnsupportedMediaType", text)
        return {**meta, **_message(meta["kind"], unknown.get("raw", b""))}
    except (BadBody, UnicodeDecodeError):
        text = "error decoding the body: these are no protocol buffers of Kubernetes"
        raise errors.bad_request(text) from None


def _message(name: str, data: bytes) -> dict[str, Any]:
    fields = MESSAGES[name]
    result: dict[str, Any] = {}
    for number, wire_type, content in _fields(data):
        field = fields.get(number)
        if field is None:
            continue
        if field.values:
            _add_entry(result.setdefault(field.name, {}), field.values, content)
            continue
        value = _value(field.type, wire_type, content)
        if field.repeated:
            result.setdefault(field.name, []).append(value)
        elif value or field.kept:
            result[field.name] = value
    return result


def _add_entry(entries: dict[str, Any], values: str, content: Any) -> None:
    """Add an entry of a map: a message of key (1) and value (2)."""
    if not isinstance(content, bytes):
        raise BadBody("a field of another type")
    entry = {number: (wire_type, one) for number, wire_type, one in _fields(content)}
    key = _value("string", *entry.get(1, (BYTES, b"")))
    entries[key] = _value(values, *entry.get(2, (BYTES, b"")))


def _value(type_: str, wire_type: int, content: Any) -> Any:
    if wire_type != (VARINT if type_ in ("int", "bool") else BYTES):
        raise BadBody("a field of another type")
    match type_:
        case "int":
            return content - (1 << 64) if content >> 63 else content
        case "bool":
            return bool(content)
        case "string":
            return content.decode()
        case "bytes":
            return base64.b64encode(content).decode("ascii")
        case "raw":
            return content
    return _from_message(type_, _message(type_, content))


def _from_message(type_: str, value: dict[str, Any]) -> Any:
    """Return the JSON value of a message, which is not always an object."""
    match type_:
        case "IntOrString":
            return value.get("text", "") if value.get("type") else value.get("number", 0)
        case "Time":
            return _time(value.get("seconds"))
        case "ExtraValue":
            return value.get("items", [])
    return value


def _time(seconds: int | None) -> str | None:
    try:
        return None if seconds is None else timestamp(seconds)
    except (ValueError, OverflowError, OSError):
        raise BadBody("a time that is none") from None


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and content of each field: bytes, or an integer for a varint."""
    for tag, begin, end in fields(data, 0, len(data)):
        content: Any = data[begin:end]
        if tag & 7 == VARINT:
            content = varint(data, begin)[0] & (1 << 64) - 1
        yield tag >> 3, tag & 7, content
