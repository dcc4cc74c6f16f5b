"""Responses in kube-apiserver's form; for ``kubectl get`` a ``metav1.Table``."""

from __future__ import annotations

import email.utils
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurtlab.api.errors import ApiError
from yurtlab.api.negotiation import JSON, Form, encode_json, type_field
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object
from yurttunnel.http.interfaces import IExchange


def table(
    kind: Resource,
    objects: Iterable[Object],
    form: Form,
    now: float,
    *,
    metadata: Object | None = None,
    headers: bool = True,
) -> Object:
    """Return a table of ``objects`` at the time ``now``, in seconds since 1970."""
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{form.version}",
        "metadata": metadata or {},
        "columnDefinitions": _definitions(kind) if headers else None,
        "rows": [_row(kind, one, form, now) for one in objects],
    }


def partial_metadata(one: Object, version: str = "v1") -> Object:
    """Reduce an object to its metadata (``PartialObjectMetadata``)."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": one["metadata"],
    }


def _definitions(kind: Resource) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": 1 if column.wide else 0,
        }
        for column in kind.columns
    ]


def _row(kind: Resource, one: Object, form: Form, now: float) -> Object:
    row: Object = {"cells": [column.cell(one, now) for column in kind.columns]}
    if form.include == "Object":
        row["object"] = one
    elif form.include == "Metadata":
        row["object"] = partial_metadata(one, form.version)
    return row


def in_form(
    kind: Resource,
    one: Object,
    form: Form,
    now: float,
    *,
    rows: Iterable[Object] | None = None,
    headers: bool = True,
) -> Object:
    """Return an object in the form that a client accepts; ``rows`` replace it in a table."""
    if form.transform == "Table":
        shown = [one] if rows is None else rows
        metadata = {"resourceVersion": one["metadata"].get("resourceVersion", "")}
        return table(kind, shown, form, now, metadata=metadata, headers=headers)
    return partial_metadata(one, form.version) if form.partial else one


@dataclass(frozen=True, slots=True)
class Page:
    """Read-only objects, and the ``ListMeta`` of their list."""

    objects: list[Object]
    metadata: Mapping[str, object]

    def in_form(self, kind: Resource, form: Form, now: float) -> Object:
        """Return the list in the form that a client accepts."""
        objects, metadata = self.objects, dict(self.metadata)
        if form.transform == "Table":
            return table(kind, objects, form, now, metadata=metadata)
        list_kind, api_version = kind.list_kind, kind.api_version
        if form.partial:
            list_kind, api_version = "PartialObjectMetadataList", f"meta.k8s.io/{form.version}"
            objects = [partial_metadata(one, form.version) for one in objects]
        return {
            "kind": list_kind,
            "apiVersion": api_version,
            "metadata": metadata,
            "items": objects,
        }


class Responder:
    """Sends responses; ``clock`` is for their dates."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock

    def send(
        self,
        exchange: IExchange,
        body: bytes,
        media_type: str = JSON,
        status: int = 200,
        warnings: Sequence[str] = (),
    ) -> None:
        """Send a complete response."""
        fields: list[tuple[bytes, bytes]] = [
            *type_field(media_type),
            (b"Cache-Control", b"no-cache, private"),
            (b"Date", email.utils.formatdate(self._clock.seconds(), usegmt=True).encode("ascii")),
        ]
        fields += [(b"Warning", _warning(text)) for text in warnings]
        exchange.respond(status, fields, body)

    def send_text(self, exchange: IExchange, text: str) -> None:
        """Send plain text, for people and probes."""
        self.send(exchange, text.encode(), "text/plain; charset=utf-8")

    def send_content(self, exchange: IExchange, content: object) -> None:
        """Send a document as JSON."""
        self.send(exchange, encode_json(content) + b"\n")

    def send_error(self, exchange: IExchange, error: ApiError) -> None:
        """Send an error as a ``Status``; if the response has begun, abort it instead."""
        if exchange.head_sent:
            exchange.abort()
        else:
            self.send(exchange, encode_json(error.as_status()) + b"\n", status=error.status)

    def send_object(
        self,
        exchange: IExchange,
        kind: Resource,
        one: Object,
        form: Form,
        status: int = 200,
        warnings: Sequence[str] = (),
    ) -> None:
        """Send an object in the form that the client accepts."""
        shown = in_form(kind, one, form, self._clock.seconds())
        self.send(exchange, form.encode(shown), form.media_type, status, warnings)

    def send_list(self, exchange: IExchange, kind: Resource, page: Page, form: Form) -> None:
        """Send a list in the form that the client accepts."""
        shown = page.in_form(kind, form, self._clock.seconds())
        self.send(exchange, form.encode(shown), form.media_type)


def deleted_status(kind: Resource, one: Object) -> Object:
    """Return the ``Status`` in response to a deletion that removed the object."""
    metadata = one["metadata"]
    details = {"name": metadata["name"], "group": kind.group, "kind": kind.plural}
    details["uid"] = metadata["uid"]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


def _warning(text: str) -> bytes:
    """Return a Warning field (RFC 7234 section 5.5) with the code 299, as in KEP-1693."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    quoted = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'.encode("ascii", "backslashreplace")
