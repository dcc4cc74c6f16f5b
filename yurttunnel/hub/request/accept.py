"""Which forms of an answer a client accepts (RFC 9110 section 12.5.1)."""

from __future__ import annotations

from functools import lru_cache

from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.requests import Form

_MEDIA = {
    "application/json": "json",
    "application/*": "json",
    "*/*": "json",
    "application/vnd.kubernetes.protobuf": "protobuf",
}
_TRANSFORMS = {
    "Table": "Table",
    "PartialObjectMetadata": "PartialObjectMetadata",
    "PartialObjectMetadataList": "PartialObjectMetadata",
}
_VERSIONS = frozenset({"v1", "v1beta1"})
"""The versions of ``meta.k8s.io`` that have the transforms."""


def forms_of(head: RequestHead) -> tuple[Form, ...]:
    """Return the forms that ``Accept`` asks for, the best first.

    Without the field it is JSON. YAML, CBOR, unknown types and unknown transforms are left out:
    so there may be none.
    """
    values = head.by_name.get(b"accept")
    if values is None:
        return _JSON
    return _forms(values[0] if len(values) == 1 else b",".join(values))


_JSON = (Form("json"),)


@lru_cache(256)
def _forms(accept: bytes) -> tuple[Form, ...]:
    weighted: list[tuple[float, Form]] = []
    for text in accept.decode("latin-1").split(","):
        media_type, *texts = (part.strip() for part in text.split(";"))
        parameters = dict(one.partition("=")[::2] for one in texts)
        weight = _weight(parameters.get("q", "1"))
        form = _form(media_type.lower(), parameters)
        if form is not None and weight > 0:
            weighted.append((weight, form))
    # The order of those that weigh the same stays.
    weighted.sort(key=lambda one: -one[0])
    return tuple(dict.fromkeys(form for _, form in weighted))


def _form(media_type: str, parameters: dict[str, str]) -> Form | None:
    media = _MEDIA.get(media_type)
    if media is None:
        return None
    asked = parameters.get("as")
    if not asked:
        return Form(media)
    transform, version = _TRANSFORMS.get(asked), parameters.get("v", "v1")
    if transform is None or parameters.get("g") != "meta.k8s.io" or version not in _VERSIONS:
        return None
    return Form(media, transform, version)


def _weight(text: str) -> float:
    """Return a weight; one that cannot be read is none, so that what has it is not chosen."""
    try:
        return float(text)
    except ValueError:
        return 0.0
