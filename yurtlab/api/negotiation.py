"""Content negotiation (RFC 9110 section 12.5.1), and the decoding of request bodies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped] # PyYAML has no types of its own

from yurtlab.api import errors
from yurtlab.api.protobuf import PROTOBUF, decode_protobuf
from yurttunnel.http.accept import MediaRange, media_ranges
from yurttunnel.http.fields import Fields
from yurttunnel.kube.yaml_documents import Loader

JSON = "application/json"
YAML = "application/yaml"

_TABLE_VERSIONS = ("v1", "v1beta1")
"""The versions of ``meta.k8s.io`` that have tables."""

_PARTIAL = frozenset({"PartialObjectMetadata", "PartialObjectMetadataList"})
_ANY = frozenset({"*/*", "application/*", JSON})


@dataclass(frozen=True, slots=True)
class Form:
    """The representation of a response.

    ``transform`` is empty for plain objects, or ``Table``, ``PartialObjectMetadata`` or
    ``PartialObjectMetadataList``, in the ``version`` of ``meta.k8s.io``. ``include`` is what each
    row of a table contains: ``None``, ``Metadata`` or ``Object``.
    """

    media_type: str = JSON
    transform: str = ""
    version: str = "v1"
    include: str = "Metadata"

    @property
    def partial(self) -> bool:
        """Whether only the metadata of each object are requested."""
        return self.transform in _PARTIAL

    def encode(self, content: Any) -> bytes:
        """Encode ``content`` in the media type."""
        if self.media_type == YAML:
            text: str = yaml.safe_dump(content, sort_keys=False)
            return text.encode()
        return encode_json(content) + b"\n"


def encode_json(content: Any) -> bytes:
    """Encode JSON on one line."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def accepted(values: Iterable[bytes]) -> list[MediaRange]:
    """Return the ranges of Accept fields, best first; without fields everything is accepted."""
    return media_ranges(b",".join(values)) or [MediaRange("*/*", {})]


def choose_form(accept: Iterable[bytes], include: str = "") -> Form:
    """Return the form of objects and lists; raise NotAcceptable if there is none.

    ``include`` is the client's choice for tables, or empty.
    """
    for one in accepted(accept):
        media_type = JSON if one.type in _ANY else one.type
        if media_type not in (JSON, YAML):
            continue
        transform = one.parameters.get("as", "")
        version = one.parameters.get("v", "v1")
        if not transform:
            return Form(media_type)
        known = transform == "Table" or transform in _PARTIAL
        if known and one.parameters.get("g") == "meta.k8s.io" and version in _TABLE_VERSIONS:
            return Form(media_type, transform, version, include or "Metadata")
    raise errors.not_acceptable((JSON, YAML))


def content_type(values: Iterable[bytes]) -> str:
    """Return the media type of a body without parameters; empty if the client sent none."""
    for value in values:
        return value.partition(b";")[0].strip().lower().decode("latin-1")
    return ""


def type_field(media_type: str) -> Fields:
    """Return the Content-Type field of a response."""
    return [(b"Content-Type", media_type.encode("ascii"))]


MAX_BODY_BYTES = 3 * 1024 * 1024
"""The limit of kube-apiserver (limitRangeRequestBodyBytes of k8s.io/apiserver)."""

MAX_DEPTH = 100
"""The maximum depth of nested objects and lists; that of Kubernetes' fields is about 20."""


def decode_body(media_type: str, data: bytes) -> Any:
    """Decode a body of ``media_type``, by default JSON.

    Raises UnsupportedMediaType or BadRequest.
    """
    if media_type in ("", JSON) or media_type.endswith("+json"):
        return decode_json(data)
    if media_type == YAML or media_type.endswith("+yaml"):
        return decode_yaml(data)
    if media_type == PROTOBUF:
        return decode_protobuf(data)
    raise errors.unsupported_media_type((JSON, YAML, PROTOBUF))


def decode_json(data: bytes) -> Any:
    """Decode JSON in UTF-8; raise BadRequest. Lone surrogates become U+FFFD, as in Go."""
    try:
        text = data.decode("utf-8", "surrogatepass")
        value = json.loads(text, parse_constant=_no_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise errors.bad_request(f"error decoding the body: invalid JSON: {error}") from None
    _check_depth(value, 0)
    if b"\xed" in data or rb"\ud" in data.lower():
        # A lone surrogate could not be encoded in any response or list with the object.
        pairs = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
        value = json.loads(pairs.decode("utf-16-le", "replace"))
    return value


def decode_yaml(data: bytes) -> Any:
    """Decode YAML without aliases, which can expand exponentially; raise BadRequest."""
    try:
        text = data.decode()
        for event in yaml.parse(text, Loader=Loader):
            if isinstance(event, yaml.AliasEvent):
                raise errors.bad_request("error decoding the body: YAML aliases are not accepted")
        # What JSON cannot represent fails here, and keys become strings.
        return decode_json(json.dumps(yaml.load(text, Loader=Loader)).encode())
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise errors.bad_request(f"error decoding the body: invalid YAML: {line}") from None


def decode_object(media_type: str, data: bytes) -> dict[str, Any]:
    """Decode a body that is an object; raise BadRequest."""
    value = decode_body(media_type, data)
    if not isinstance(value, dict):
        raise errors.bad_request("error decoding the body: it is not an object")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value


def _check_depth(value: Any, depth: int) -> None:
    if not isinstance(value, dict | list):
        return
    if depth == MAX_DEPTH:
        raise errors.bad_request(f"error decoding the body: nested deeper than {MAX_DEPTH}")
    for one in value.values() if isinstance(value, dict) else value:
        _check_depth(one, depth + 1)
