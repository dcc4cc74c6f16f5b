"""The query parameters of requests, as in k8s.io/apimachinery pkg/apis/meta/v1.

Selectors restrict a list, a watch or a deletion to some objects.
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
    """Parse a query; raise BadRequest."""
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise errors.bad_request("the query has too many parameters") from None


def first(query: Query, name: str) -> str:
    """Return the first value of a parameter, or an empty string."""
    return query.get(name, ("",))[0]


def flag(query: Query, name: str) -> bool:
    """Return the value of a boolean parameter."""
    return name in query and first(query, name) not in _FALSE


def number(query: Query, name: str) -> int | None:
    """Return the value of a 64-bit integer parameter, or ``None``; raise BadRequest."""
    text = first(query, name)
    try:
        return int64(text) if text else None
    except ValueError as error:
        raise errors.bad_request(f"{error}: {name} is a whole number") from None


def int64(text: str) -> int:
    """Parse an integer like Go's ``strconv.ParseInt``; raise ValueError with its messages."""
    problem = "invalid syntax"
    with suppress(ValueError):
        if -(2**63) <= (value := int(text)) < 2**63:
            return value
        problem = "value out of range"
    raise ValueError(f'strconv.ParseInt: parsing "{text}": {problem}')


Selector = Callable[[Object], bool]
"""Returns whether an object is selected."""


def label_selector(text: str) -> Selector:
    """Parse a label selector; an empty one selects all. Raise BadRequest."""
    try:
        test = label_test(text)
    except BadSelector as error:
        raise errors.bad_request(str(error)) from None
    return lambda one: test(one["metadata"].get("labels") or {})


def field_selector(kind: Resource, text: str) -> Selector:
    """Parse a field selector for ``kind``; an empty one selects all. Raise BadRequest."""
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
    """Return the selector of ``labelSelector`` and ``fieldSelector``; raise BadRequest."""
    labels = label_selector(first(query, "labelSelector"))
    fields = field_selector(kind, first(query, "fieldSelector"))
    return lambda one: labels(one) and fields(one)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write; ``field_manager`` is for server-side apply."""

    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""


def write_options(query: Query) -> WriteOptions:
    """Return the options of a write; raise BadRequest."""
    validation = first(query, "fieldValidation")
    if validation not in _VALIDATIONS:
        raise errors.bad_request(
            f"fieldValidation: Unsupported value: {validation!r}: supported values:"
            ' "Ignore", "Strict", "Warn"'
        )
    return WriteOptions(
        _dry_run(query.get("dryRun", ())), validation or "Warn", first(query, "fieldManager")
    )


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a deletion: see ``metav1.DeleteOptions``."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    dry_run: bool = False


def delete_options(query: Query, body: Mapping[str, Any]) -> DeleteOptions:
    """Return the options of a deletion, from the body or else the query; raise BadRequest."""
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
