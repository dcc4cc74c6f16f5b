"""The response forms that a client accepts (RFC 9110 section 12.5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from yurttunnel.http.accept import MAX_ACCEPT, media_range, media_ranges
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.requests import Form

_ENCODINGS = {
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
"""The versions of ``meta.k8s.io`` that define the transforms."""


def forms_of(head: RequestHead) -> tuple[Form, ...]:
    """Return the forms that ``Accept`` lists, the best first.

    Without the header field the form is JSON. YAML, CBOR, unknown types and unknown transforms are
    omitted, so the result may be empty. Raises ``RequestFailed`` (400) for more than
    :data:`MAX_ACCEPT` bytes.
    """
    values = head.by_name.get(b"accept")
    if values is None:
        return _JSON
    accept = values[0] if len(values) == 1 else b",".join(values)
    if len(accept) > MAX_ACCEPT:
        raise RequestFailed(400, f"Accept has more than {MAX_ACCEPT} bytes")
    return _forms(accept)


_JSON = (Form("json"),)


def json_forms(forms: Iterable[Form]) -> tuple[Form, ...]:
    """Return the forms that filters can process; if there is none, the response is 406.

    A Table is omitted although it can be JSON: its rows have only the metadata of objects, so
    filters could not use their spec. Clients that request Tables, such as kubectl, also accept
    objects. ``PartialObjectMetadata`` is included: filters do not change metadata, but hide objects
    by name.
    """
    return tuple(form for form in forms if form.encoding == "json" and form.transform != "Table")


def json_only(fields: Fields) -> list[tuple[bytes, bytes]]:
    """Return a request's fields with ``Accept`` reduced to :func:`json_forms`."""
    accept = b",".join(value for name, value in fields if name.lower() == b"accept")
    others = [field for field in fields if field[0].lower() != b"accept"]
    accepted = [
        ";".join(["application/json", *(f"{name}={value}" for name, value in parameters.items())])
        for media_type, parameters in media_ranges(accept)
        if _ENCODINGS.get(media_type) == "json" and parameters.get("as") != "Table"
    ]
    return [*others, (b"Accept", ",".join(accepted or ["application/json"]).encode("latin-1"))]


@lru_cache(256)
def response_form(content_type: bytes, forms: tuple[Form, ...]) -> Form | None:
    """Return which of the requested forms a response has, by its ``Content-Type``.

    kube-apiserver sends only the media type, also for transformed objects; the result is then the
    best requested form of that type.
    """
    found = _form(*media_range(content_type.decode("latin-1")))
    fitting = (form for form in forms if found in (form, Form(form.encoding)))
    return next(fitting, None)


def encoding_of(content_type: bytes) -> str:
    """Return the ``encoding`` of :class:`Form` for a ``Content-Type``, empty for other types."""
    return _ENCODINGS.get(media_range(content_type.decode("latin-1")).type, "")


def document_form(content_type: bytes) -> str:
    """Return the form of a response that is not an object, by its ``Content-Type``.

    The form is the media type with the parameters that distinguish the representations of discovery
    (KEP-3352).
    """
    return _document_form(*media_range(content_type.decode("latin-1")))


def document_forms(head: RequestHead) -> tuple[str, ...]:
    """Return the forms that ``Accept`` lists for responses that are not objects, the best first."""
    accept = b",".join(head.values(b"accept")) or b"*/*"
    found = (_document_form(*each) for each in media_ranges(accept))
    return tuple(dict.fromkeys(found))


def _document_form(media_type: str, parameters: dict[str, str]) -> str:
    if _ENCODINGS.get(media_type) == "json":
        media_type = "application/json"
    # The old name of an OpenAPI media type; the response has the new name
    # (subTypeProtobufDeprecated of k8s.io/kube-openapi pkg/handler/handler.go).
    media_type = media_type.replace("@", ".")
    known_parameters = [
        f"{name}={parameters[name]}" for name in ("as", "g", "v") if parameters.get(name)
    ]
    return ";".join([media_type, *known_parameters])


@lru_cache(256)
def _forms(accept: bytes) -> tuple[Form, ...]:
    forms = (_form(*each) for each in media_ranges(accept))
    return tuple(dict.fromkeys(form for form in forms if form is not None))


def _form(media_type: str, parameters: dict[str, str]) -> Form | None:
    encoding = _ENCODINGS.get(media_type)
    if encoding is None:
        return None
    transform_name = parameters.get("as")
    if not transform_name:
        return Form(encoding)
    transform, version = _TRANSFORMS.get(transform_name), parameters.get("v", "v1")
    if transform is None or parameters.get("g") != "meta.k8s.io" or version not in _VERSIONS:
        return None
    return Form(encoding, transform, version)
