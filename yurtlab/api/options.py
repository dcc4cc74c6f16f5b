"""What the query of a request asks for, as k8s.io/apimachinery pkg/apis/meta/v1 has it.

Selectors say which objects a list, a watch or a deletion is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from yurtlab.api import errors
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object
from yurttunnel.kube.selectors import BadSelector, field_terms, label_test

Query = Mapping[str, Sequence[str]]

_FALSE = frozenset({"", "0", "f", "F", "false", "False", "FALSE"})
_VALIDATIONS = ("", "Ignore", "Warn", "Strict")


def parse_query(text: str) -> Query:
    """Read a query; raises BadRequest."""
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise errors.bad_request("the query has too many parameters") from None


def first(query: Query, name: str) -> str:
    """Return the first value of a parameter, empty when it is not there."""
    return query.get(name, ("",))[0]


def flag(query: Query, name: str) -> bool:
    """Return a parameter that is true or false."""
    return name in query and first(query, name) not in _FALSE


def number(query: Query, name: str) -> int | None:
    """Return a whole number of 64 bits, ``None`` when it is not there; raises BadRequest."""
    text = first(query, name)
    try:
        return int64(text) if text else None
    except ValueError as error:
        raise errors.bad_request(f"{error}: {name} is a whole number") from None


def int64(text: str) -> int:
    """Read a whole number as ``strconv.ParseInt`` of Go does; raises ValueError in its words."""
    problem = "invalid syntax"
    with suppress(ValueError):
        if -(2**63) <= (value := int(text)) < 2**63:
            return value
        problem = "value out of range"
    raise ValueError(f'strconv.ParseInt: parsing "{text}": {problem}')


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


def selection(kind: Resource, query: Query) -> Selector:
    """Return the objects that ``labelSelector`` and ``fieldSelector`` select; raises BadRequest."""
    labels = label_selector(first(query, "labelSelector"))
    fields = field_selector(kind, first(query, "fieldSelector"))
    return lambda one: labels(one) and fields(one)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How an object is written; ``field_manager`` is for server-side apply."""

    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""


def write_options(query: Query) -> WriteOptions:
    """Read how an object is to be written; raises BadRequest."""
    validation = first(query, "fieldValidation")
    if validation not in _VALIDATIONS:
        raise errors.bad_request(
            f"fieldValidation: Unsupported value: {validation!r}: supported values:"
            ' "Ignore", "Strict", "Warn"'
        )
    return WriteOptions(
        _dry_run(query.get("dryRun", ())),
        validation or "Warn",
        first(query, "fieldManager"),
    )


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How an object is deleted: see ``metav1.DeleteOptions``."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    dry_run: bool = False


def delete_options(query: Query, body: Mapping[str, Any]) -> DeleteOptions:
    """Read how an object is to be deleted, from the body or, without one, from the query."""
    if not body:
        grace = number(query, "gracePeriodSeconds")
        return DeleteOptions(grace, dry_run=_dry_run(query.get("dryRun", ())))
    grace, preconditions = body.get("gracePeriodSeconds"), body.get("preconditions") or {}
    dry_run = body.get("dryRun") or query.get("dryRun", ())
    if (
        not isinstance(grace, int | None)
        or not isinstance(preconditions, dict)
        or not isinstance(dry_run, list | tuple)
    ):
        raise errors.bad_request("the body is not a DeleteOptions")
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    return DeleteOptions(grace, str(uid or ""), str(version or ""), _dry_run(dry_run))


def _dry_run(values: Sequence[str]) -> bool:
    desired = [value for value in values if value]
    if desired and desired != ["All"]:
        raise errors.bad_request(
            f'dryRun: Unsupported value: "{desired[0]}": supported values: "All"'
        )
    return bool(desired)
