"""Which forms of an answer a client accepts (RFC 9110 section 12.5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from yurttunnel.http.accept import LONGEST_ACCEPT, media_range, media_ranges
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import Fields
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
    so there may be none. Raises ``RequestFailed`` (400) for more than :data:`LONGEST_ACCEPT`.
    """
    values = head.by_name.get(b"accept")
    if values is None:
        return _JSON
    accept = values[0] if len(values) == 1 else b",".join(values)
    if len(accept) > LONGEST_ACCEPT:
        raise RequestFailed(400, f"Accept has more than {LONGEST_ACCEPT} bytes")
    return _forms(accept)


_JSON = (Form("json"),)


def json_forms(forms: Iterable[Form]) -> tuple[Form, ...]:
    """Return those of the forms that a filter can look into; with none, the answer is 406.

    A Table is left out although it can be JSON: of objects it has the metadata only, so nothing
    could be changed or hidden by what they specify. Who asks for Tables, as kubectl does, takes
    objects, too. ``PartialObjectMetadata`` stays: it has nothing that filters change but what hides
    by name.
    """
    return tuple(form for form in forms if form.media == "json" and form.transform != "Table")


def json_only(fields: Fields) -> list[tuple[bytes, bytes]]:
    """Return a request's fields, whose ``Accept`` asks for :func:`json_forms` only."""
    accept = b",".join(value for name, value in fields if name.lower() == b"accept")
    others = [field for field in fields if field[0].lower() != b"accept"]
    kept = [
        ";".join(["application/json", *(f"{name}={value}" for name, value in parameters.items())])
        for media_type, parameters in media_ranges(accept)
        if _MEDIA.get(media_type) == "json" and parameters.get("as") != "Table"
    ]
    return [*others, (b"Accept", ",".join(kept or ["application/json"]).encode("latin-1"))]


@lru_cache(256)
def answered_form(content_type: bytes, forms: tuple[Form, ...]) -> Form | None:
    """Return which of the forms that were asked for an answer has, by its ``Content-Type``.

    kube-apiserver says the bare media type, also of what it has transformed: then it is the best
    one of that type.
    """
    found = _form(*media_range(content_type.decode("latin-1")))
    fitting = (form for form in forms if found in (form, Form(form.media)))
    return next(fitting, None)


def media_of(content_type: bytes) -> str:
    """Return the ``media`` of :class:`Form` that a ``Content-Type`` says, empty for others."""
    return _MEDIA.get(media_range(content_type.decode("latin-1")).type, "")


def document_form(content_type: bytes) -> str:
    """Return the form of an answer that is no object, by its ``Content-Type``.

    That is the media type with what tells one representation of discovery from another (KEP-3352).
    """
    return _document_form(*media_range(content_type.decode("latin-1")))


def document_forms(head: RequestHead) -> tuple[str, ...]:
    """Return the forms that ``Accept`` asks for of what is no object, the best first."""
    accept = b",".join(head.values(b"accept")) or b"*/*"
    found = (_document_form(*each) for each in media_ranges(accept))
    return tuple(dict.fromkeys(found))


def _document_form(media_type: str, parameters: dict[str, str]) -> str:
    if _MEDIA.get(media_type) == "json":
        media_type = "application/json"
    # The old name of a type of OpenAPI, which is answered with the new one
    # (subTypeProtobufDeprecated of k8s.io/kube-openapi pkg/handler/handler.go).
    media_type = media_type.replace("@", ".")
    told = [f"{name}={parameters[name]}" for name in ("as", "g", "v") if parameters.get(name)]
    return ";".join([media_type, *told])


@lru_cache(256)
def _forms(accept: bytes) -> tuple[Form, ...]:
    forms = (_form(*each) for each in media_ranges(accept))
    return tuple(dict.fromkeys(form for form in forms if form is not None))


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
