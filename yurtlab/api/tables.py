"""Objects as ``metav1.Table``: how ``kubectl get`` asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from yurtlab.api.resources import Resource
from yurtlab.api.store import Object

TABLE_VERSIONS = ("v1", "v1beta1")
"""The versions of ``meta.k8s.io`` in which there are tables."""


def table(
    kind: Resource,
    objects: Iterable[Object],
    now: float,
    *,
    version: str = "v1",
    include: str = "Metadata",
    metadata: Object | None = None,
    headers: bool = True,
) -> Object:
    """Make a table of ``objects`` at the time ``now``, in seconds since 1970.

    ``include`` is what comes along with each row: ``None``, ``Metadata`` or ``Object``.
    """
    api_version = f"meta.k8s.io/{version}"
    made: Object = {"kind": "Table", "apiVersion": api_version, "metadata": metadata or {}}
    made["columnDefinitions"] = _definitions(kind) if headers else None
    made["rows"] = [_row(kind, one, now, include, api_version) for one in objects]
    return made


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


def _row(kind: Resource, one: Object, now: float, include: str, api_version: str) -> Object:
    row: Object = {"cells": [column.cell(one, now) for column in kind.columns]}
    if include == "Object":
        row["object"] = one
    elif include == "Metadata":
        row["object"] = partial_metadata(one, api_version.partition("/")[2])
    return row
