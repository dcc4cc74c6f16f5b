"""Kubernetes protobuf as the API writes it: an encoder with the published schema.

``schema.json`` has the messages of ``generated.proto`` in k8s.io/api and k8s.io/apimachinery, as
far as they are used here, by their field numbers. ``[]`` is a repeated field; ``?`` is a pointer in
Go, which is omitted if it is not set: other fields are written as zeros. Field 2000 of pods does
not exist in any version.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SCHEMA = json.loads(Path(__file__).with_name("schema.json").read_bytes())

MAGIC = b"k8s\0"

_FIELD = re.compile(r"(?P<name>\w+)(?:: (?P<type>\w+))?(?P<repeated>\[\])?(?P<pointer>\?)?")


def varint(number: int) -> bytes:
    """Encode a number."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])


def field(number: int, content: int | str | bytes) -> bytes:
    """Encode a field: a number, a string or bytes."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(name: str, value: dict[str, Any]) -> bytes:
    """Encode a message."""
    return b"".join(_fields(int(n), text, value) for n, text in SCHEMA[name].items())


def _fields(number: int, text: str, value: dict[str, Any]) -> bytes:
    found = _FIELD.fullmatch(text)
    assert found is not None, text
    name, type_ = found["name"], found["type"] or "string"
    if found["repeated"]:
        return b"".join(field(number, _content(type_, one)) for one in value.get(name, ()))
    if type_ == "map":
        entries = sorted(value.get(name, {}).items())
        return b"".join(field(number, field(1, key) + field(2, one)) for key, one in entries)
    if found["pointer"] and name not in value:
        return b""
    return field(number, _content(type_, value.get(name)))


def _content(type_: str, value: Any) -> int | str | bytes:
    match type_:
        case "int":
            return int(value or 0)
        case "string":
            return str(value or "")
        case "raw":
            return bytes(value or b"")
    return message(type_, value or {})


def body(kind: str, value: dict[str, Any], api_version: str = "v1") -> bytes:
    """Encode an object or a list in its envelope."""
    meta = {"apiVersion": api_version, "kind": kind}
    return MAGIC + message("Unknown", {"typeMeta": meta, "raw": message(kind, value)})


def frame(event: str, kind: str, value: dict[str, Any], api_version: str = "v1") -> bytes:
    """Encode an event of a watch."""
    raw = body(kind, value, api_version)
    data = message("WatchEvent", {"type": event, "object": {"raw": raw}})
    return len(data).to_bytes(4) + data
