"""Label and field selectors: which objects a list, a watch or a deletion is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from yurtlab.api import errors
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object
from yurttunnel.kube.selectors import BadSelector, field_terms, label_test

Selector = Callable[[Object], bool]
"""Returns whether an object is meant."""


def label_selector(text: str) -> Selector:
    """Read a label selector; an empty one means all. Raises BadRequest."""
    try:
        test = label_test(text)
    except BadSelector as error:
        raise errors.bad_request(str(error)) from None
    return lambda one: test(one["metadata"].get("labels") or {})


def field_selector(kind: Resource, text: str) -> Selector:
    """Read a field selector for objects of ``kind``; an empty one means all. Raises BadRequest."""
    try:
        terms = field_terms(text)
    except BadSelector as error:
        raise errors.bad_request(str(error)) from None
    paths = [(*_path(kind, term.field), term) for term in terms]
    return lambda one: all(term.holds(_field(one, path, default)) for path, default, term in paths)


def both(first: Selector, second: Selector) -> Selector:
    """Select what both select."""
    return lambda one: first(one) and second(one)


def _path(kind: Resource, field: str) -> tuple[tuple[str, ...], str]:
    if field == "metadata.name" or (field == "metadata.namespace" and kind.namespaced):
        return tuple(field.split(".")), ""
    for selectable in kind.selectable_fields:
        if selectable.name == field:
            return tuple((selectable.path or field).split(".")), selectable.default
    raise errors.bad_request(f"field label not supported: {field}")


def _field(one: Object, path: tuple[str, ...], default: str) -> str:
    value: Any = one
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return default
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
