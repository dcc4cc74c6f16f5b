"""Label and field selectors: which objects a list, a watch or a deletion is about.

The grammar of labels is that of k8s.io/apimachinery pkg/labels (``a=b,c!=d,e in (f,g),h,!i``),
that of fields the one of pkg/fields (``a=b,c!=d`` with ``\\`` before commas and equals signs).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from yurtlab.api import errors
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object

Selector = Callable[[Object], bool]
"""Tells whether an object is meant."""

_KEY = r"(?P<key>[A-Za-z0-9./_-]+)"
_REQUIREMENT = re.compile(
    rf"\s*(?:"
    rf"(?P<absent>!)\s*(?P<absent_key>[A-Za-z0-9./_-]+)"
    rf"|{_KEY}\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|{_KEY.replace('key', 'compared')}\s*(?P<operator>==|=|!=|>|<)\s*(?P<value>[A-Za-z0-9._-]*)"
    rf"|{_KEY.replace('key', 'present')}"
    rf")\s*(?:,|\Z)"
)
_FIELD = re.compile(
    r"(?P<field>[^=!,\\]+)(?P<operator>==|=|!=)(?P<value>(?:[^,=\\]|\\[,=\\])*)(?:,|\Z)"
)
_ESCAPED = re.compile(r"\\([,=\\])")


@dataclass(frozen=True, slots=True)
class _Requirement:
    """What one label has to be; ``values`` are those of the operators that have some."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: dict[str, str]) -> bool:
        """Return whether ``labels`` are so."""
        value = labels.get(self.key)
        match self.operator:
            case "in" | "=" | "==":
                return value in self.values
            case "notin" | "!=":
                return value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        (limit,) = self.values
        try:
            actual, bound = int(value or ""), int(limit)
        except ValueError:
            return False
        return actual > bound if self.operator == ">" else actual < bound


def label_selector(text: str) -> Selector:
    """Read a label selector; an empty one means all. Raises BadRequest."""
    requirements = _requirements(text)

    def selects(one: Object) -> bool:
        labels = one["metadata"].get("labels") or {}
        return all(requirement.holds(labels) for requirement in requirements)

    return selects


def field_selector(kind: Resource, text: str) -> Selector:
    """Read a field selector for objects of ``kind``; an empty one means all. Raises BadRequest."""
    terms = _terms(kind, text)

    def selects(one: Object) -> bool:
        return all(
            (_field(one, path, default) == value) is same for path, default, same, value in terms
        )

    return selects


def both(first: Selector, second: Selector) -> Selector:
    """Select what both select."""
    return lambda one: first(one) and second(one)


def _requirements(text: str) -> list[_Requirement]:
    found: list[_Requirement] = []
    position = 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None or (match.end() == len(text) and text.endswith(",")):
            raise errors.bad_request(
                f"unable to parse requirement: {text!r} is not a label selector"
            )
        found.append(_requirement(match))
        position = match.end()
    return found


def _requirement(match: re.Match[str]) -> _Requirement:
    if match["absent"]:
        return _Requirement(match["absent_key"], "absent")
    if match["set"]:
        values = frozenset(value.strip() for value in match["values"].split(","))
        return _Requirement(match["key"], match["set"], values)
    if match["operator"]:
        return _Requirement(match["compared"], match["operator"], frozenset([match["value"]]))
    return _Requirement(match["present"], "exists")


_Term = tuple[tuple[str, ...], str, bool, str]


def _terms(kind: Resource, text: str) -> list[_Term]:
    return [(*_path(kind, field), same, value) for field, same, value in field_terms(text)]


def field_terms(text: str) -> list[tuple[str, bool, str]]:
    """Read a field selector: fields that are, or are not, to have a value. Raises BadRequest."""
    found: list[tuple[str, bool, str]] = []
    position = 0
    while position < len(text):
        match = _FIELD.match(text, position)
        if match is None:
            raise errors.bad_request(
                f"invalid selector: {text!r}; can't understand {text[position:]!r}"
            )
        position = match.end()
        value = _ESCAPED.sub(r"\1", match["value"])
        found.append((match["field"].strip(), match["operator"] != "!=", value))
    return found


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
