"""Which form of an answer a client accepts (RFC 9110 section 12.5.1)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped] # PyYAML has no types of its own

from yurtlab.api import errors
from yurtlab.api.tables import TABLE_VERSIONS
from yurttunnel.http.fields import Fields

JSON = "application/json"
YAML = "application/yaml"

_PARTIAL = frozenset({"PartialObjectMetadata", "PartialObjectMetadataList"})
_ANY = frozenset({"*/*", "application/*", JSON})


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an answer.

    ``transform`` is empty for objects as they are, or ``Table``, ``PartialObjectMetadata`` or
    ``PartialObjectMetadataList``, in the ``version`` of ``meta.k8s.io``.
    """

    media_type: str = JSON
    transform: str = ""
    version: str = "v1"

    @property
    def partial(self) -> bool:
        """Whether of each object only the metadata are wanted."""
        return self.transform in _PARTIAL

    def encode(self, content: Any) -> bytes:
        """Write ``content`` in the media type."""
        if self.media_type == YAML:
            text: str = yaml.safe_dump(content, sort_keys=False)
            return text.encode()
        return encode_json(content) + b"\n"


@dataclass(frozen=True, slots=True)
class MediaRange:
    """One of the things that a client accepts, with its parameters but the weight."""

    type: str
    parameters: dict[str, str]


def encode_json(content: Any) -> bytes:
    """Write JSON on one line."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def accepted(values: Iterable[bytes]) -> list[MediaRange]:
    """Read Accept fields, what is preferred first; without any, everything is accepted."""
    found: list[tuple[float, MediaRange]] = []
    for text in b",".join(values).decode("latin-1").split(","):
        media_type, *parameters = (part.strip() for part in text.split(";"))
        pairs = dict(parameter.partition("=")[::2] for parameter in parameters)
        weight = _weight(pairs.pop("q", "1"))
        if media_type and weight > 0:
            found.append((weight, MediaRange(media_type.lower(), pairs)))
    found.sort(key=lambda one: -one[0])
    return [one for _, one in found] or [MediaRange("*/*", {})]


def choose_form(accept: Iterable[bytes]) -> Form:
    """Choose the form of objects and lists; NotAcceptable when there is none."""
    for one in accepted(accept):
        media_type = JSON if one.type in _ANY else one.type
        if media_type not in (JSON, YAML):
            continue
        transform = one.parameters.get("as", "")
        version = one.parameters.get("v", "v1")
        if not transform:
            return Form(media_type)
        known = transform == "Table" or transform in _PARTIAL
        if known and one.parameters.get("g") == "meta.k8s.io" and version in TABLE_VERSIONS:
            return Form(media_type, transform, version)
    raise errors.not_acceptable((JSON, YAML))


def content_type(values: Iterable[bytes]) -> str:
    """Return the media type of a body, without parameters; empty when it is not said."""
    for value in values:
        return value.partition(b";")[0].strip().lower().decode("latin-1")
    return ""


def type_field(media_type: str) -> Fields:
    """Make the field that says what an answer is."""
    return [(b"Content-Type", media_type.encode("ascii"))]


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
